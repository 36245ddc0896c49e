// convert_row: the body of convert_activations, for one CTA and token. Internal to kernels/moe/*.cu.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/ptx.cuh"
#include "kernels/moe/warp_decode.h"

namespace warproll::moe {

inline constexpr int kConvertThreads = 128;  // of convert_activations

// 1, or the power of two that brings `largest` below 2^15. An inf or NaN keeps 1 and shows in y.
__device__ __forceinline__ float activation_scale(float largest) {
  const int exponent = static_cast<int>(__float_as_uint(largest) >> 23 & 255u);
  if (exponent < 127 + 15 || exponent == 255) return 1.0f;
  return __uint_as_float(static_cast<uint32_t>(exponent - 14) << 23);
}

// kTileOrder: as tile_position() says; else in the order of the columns.
template <int kThreads, bool kTileOrder = true>
__device__ void convert_row(const ConvertActivationsParams& p, int token, float* largest_of_warp) {
  const int me = static_cast<int>(threadIdx.x);
  const uint16_t* x = p.x + static_cast<int64_t>(token) * p.hidden_size;
  float largest = 0.0f;
  for (int c = me * 2; c < p.hidden_size; c += kThreads * 2) {
    const uint32_t two = *reinterpret_cast<const uint32_t*>(x + c);
    largest = fmaxf(largest, fmaxf(fabsf(__uint_as_float(two << 16)),
                                   fabsf(__uint_as_float(two & 0xffff0000u))));
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  }
  if (me % 32 == 0) largest_of_warp[me / 32] = largest;
  __syncthreads();
  for (int w = 0; w < kThreads / 32; ++w) largest = fmaxf(largest, largest_of_warp[w]);
  const float scale = activation_scale(largest);
  const float inverse = 1.0f / scale;
  if (me == 0) p.out.scales[token] = scale;
  uint16_t* out = p.out.values + static_cast<int64_t>(token) * p.hidden_size;
  for (int c = me * 2; c < p.hidden_size; c += kThreads * 2) {  // c even: both keep together
    const uint32_t two = *reinterpret_cast<const uint32_t*>(x + c);
    const __half2 halves = __floats2half2_rn(__uint_as_float(two << 16) * inverse,
                                             __uint_as_float(two & 0xffff0000u) * inverse);
    *reinterpret_cast<__half2*>(out + (kTileOrder ? tile_position(c) : c)) = halves;
  }
}

}  // namespace warproll::moe
