// find_not_finite_key: the first element of a weight that must not be there: NaN and Inf in F32, F16
// and BF16, the NaN codes of E4M3 (0x7f, 0xff) and E8M0 (255). The device's twin of
// weights_sync/tensor_scan.h. Integer types have nothing to find.
// The answer is one number, so that the least index wins wherever threads find theirs: index << 32 |
// bits for F32, index << 16 | bits for the others; kNoneNotFinite when all are good.
// Thread: any, one stream. Errors: std::invalid_argument, CudaError.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/dtype.h"

namespace warproll {

inline constexpr uint64_t kNoneNotFinite = ~uint64_t{0};

struct NotFinite {
  uint64_t index = 0;
  uint32_t bits = 0;
};
constexpr NotFinite not_finite_of(Dtype dtype, uint64_t key) {
  const int shift = dtype == Dtype::kF32 ? 32 : 16;
  return {key >> shift, static_cast<uint32_t>(key & ((uint64_t{1} << shift) - 1))};
}

// An element is bad when (bits & mask) == mask; bits_each 0: nothing of the type is.
struct NotFiniteRule {
  uint32_t mask = 0;
  uint32_t bits_each = 0;
};
constexpr NotFiniteRule not_finite_rule(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return {0x7f800000u, 32};
    case Dtype::kF16:
      return {0x7c00u, 16};
    case Dtype::kBf16:
      return {0x7f80u, 16};
    case Dtype::kF8E4M3:
      return {0x7fu, 8};
    case Dtype::kF8E8M0:
      return {0xffu, 8};
    default:
      return {};
  }
}

struct FindNotFiniteParams {
  const std::byte* data = nullptr;  // [bytes], whole elements; device, 16-byte aligned
  uint64_t bytes = 0;               // of F32: below 2^34
  Dtype dtype = Dtype::kBf16;
  uint64_t* key = nullptr;  // device: becomes the least of its value and what is found; start it at
};                          // kNoneNotFinite
void find_not_finite_key(const FindNotFiniteParams& params, cudaStream_t stream);

}  // namespace warproll
