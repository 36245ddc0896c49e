// quantise_block: one block of 32 columns by one warp, a lane a column. Internal to kernels/*.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/quantise.h"

namespace warproll {

__device__ inline float load_float(const float* p) { return *p; }
__device__ inline float load_float(const __half* p) { return __half2float(*p); }
__device__ inline float load_float(const __nv_bfloat16* p) { return __bfloat162float(*p); }

// first_non_finite may be null.
template <typename Source>
__device__ void quantise_block(const QuantiseMxfp8Params& p, int64_t block, int lane,
                               unsigned long long* first_non_finite) {
  const int64_t at = block * kMxfp8BlockCols + lane;
  const float x = load_float(reinterpret_cast<const Source*>(p.source) + at);
  const uint32_t magnitude = __float_as_uint(x) & 0x7fffffffu;
  const uint32_t largest = __reduce_max_sync(~0u, magnitude);
  if (largest >= 0x7f800000u) {
    p.elements[at] = 0;
    if (lane == 0) p.scales[block] = 255;
    if (magnitude >= 0x7f800000u && first_non_finite != nullptr) {
      atomicMin(first_non_finite, static_cast<unsigned long long>(at));
    }
    return;
  }
  const int scale = max(static_cast<int>(largest >> 23) - 8, 0);  // 448 = 1.75 * 2^8
  const float inverse = __uint_as_float(static_cast<uint32_t>(254 - scale) << 23);
  p.elements[at] = __nv_cvt_float_to_fp8(x * inverse, __NV_SATFINITE, __NV_E4M3);
  if (lane == 0) p.scales[block] = static_cast<uint8_t>(scale);
}

}  // namespace warproll
