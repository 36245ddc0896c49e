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

// Whether one of the elements has all of `mask`; no early exit.
template <int kBits>
__device__ inline bool any_bad(uint4 v, uint32_t mask) {
  const uint32_t words[] = {v.x, v.y, v.z, v.w};
  bool bad = false;
#pragma unroll
  for (const uint32_t word : words) {
    if constexpr (kBits == 32) bad |= (word & mask) == mask;
    if constexpr (kBits == 16) bad |= __vcmpeq2(word & (mask | mask << 16), mask | mask << 16) != 0;
    if constexpr (kBits == 8) bad |= __vcmpeq4(word & mask * 0x01010101u, mask * 0x01010101u) != 0;
  }
  return bad;
}

}  // namespace warproll
