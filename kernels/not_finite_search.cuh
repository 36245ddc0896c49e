// The search for elements that must not be there, 16 bytes at a time. Internal to kernels/*.cu.
#pragma once

#include <cstdint>

#include "kernels/not_finite.h"

namespace warproll {

// An element is bad when (bits & mask) == mask, of kBits bits.
template <int kBits>
__device__ inline void search(uint64_t word, uint32_t mask, uint64_t first_index, uint64_t* key) {
  for (int i = 0; i < 64 / kBits; ++i) {
    const auto bits = static_cast<uint32_t>(word >> (i * kBits) & ((uint64_t{1} << kBits) - 1));
    if ((bits & mask) != mask) continue;
    const int shift = kBits == 32 ? 32 : 16;
    atomicMin(reinterpret_cast<unsigned long long*>(key),
              static_cast<unsigned long long>((first_index + i) << shift | bits));
    return;
  }
}

// Whether one of the elements has all of `mask`; no early exit. (x - 1) & ~x has its top bit where an element x is 0,
// and beside one.
template <int kBits>
__device__ inline bool any_bad(uint4 v, uint32_t mask) {
  constexpr uint32_t kOnes = kBits == 8 ? 0x01010101u : kBits == 16 ? 0x00010001u : 1u;
  const uint32_t words[] = {v.x, v.y, v.z, v.w}, masks = mask * kOnes;
  uint32_t bad = 0;
#pragma unroll
  for (const uint32_t word : words) {
    const uint32_t lacks = ~word & masks;
    bad |= (lacks - kOnes) & ~lacks;
  }
  return (bad & kOnes << (kBits - 1)) != 0;
}

}  // namespace warproll
