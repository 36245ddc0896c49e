// Four or eight neighbouring values at once: BF16 activations, and weights of any 16- or 32-bit
// dtype, as F32. Internal to kernels/step/*.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/dtype.h"

namespace warproll::step {

// What a launcher asks of a pointer that is read 16 bytes at a time.
[[nodiscard]] inline bool is_aligned(const void* p, uintptr_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

__device__ __forceinline__ float4 bf16_to_float4(uint2 four) {
  return make_float4(__uint_as_float(four.x << 16), __uint_as_float(four.x & 0xffff0000u),
                     __uint_as_float(four.y << 16), __uint_as_float(four.y & 0xffff0000u));
}

__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Rounded to nearest, ties to even.
__device__ __forceinline__ uint2 float4_to_bf16(float4 v) {
  return make_uint2(bf16_pair(v.x, v.y), bf16_pair(v.z, v.w));
}

__device__ __forceinline__ float4 f16_to_float4(uint2 four) {
  const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&four.x));
  const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&four.y));
  return make_float4(low.x, low.y, high.x, high.y);
}

__device__ __forceinline__ float4 load_bf16(const uint16_t* p) {
  return bf16_to_float4(*reinterpret_cast<const uint2*>(p));
}

// Elements index .. index + 3 (index a multiple of 4) of a vector of `dtype`: kBf16, kF16 or kF32.
__device__ __forceinline__ float4 load_weights(const void* p, Dtype dtype, int64_t index) {
  if (dtype == Dtype::kF32) return static_cast<const float4*>(p)[index / 4];
  const uint2 four = static_cast<const uint2*>(p)[index / 4];
  return dtype == Dtype::kF16 ? f16_to_float4(four) : bf16_to_float4(four);
}

}  // namespace warproll::step
