// What qkv_finish does with a head, by sixteen lanes: the norm and rope, in the twins' order and roundings.
// The sum of squares is rmsnorm_cpu's, bit for bit: sixteen lanes add columns i, i + 16, .. in order,
// and are folded in halves. Squares of BF16 are exact in F32, so FMA does not change them.
// Internal to kernels/step/*.
#pragma once

#include "kernels/step/vectors.cuh"

namespace warproll::head {

inline constexpr int kLanes = 16;  // of a head
inline constexpr int kCols = 4;    // of each half, of a lane, at a time

// No FMA: the roundings of rope_kv_write_cpu.
__device__ __forceinline__ float rotate_low(float low, float high, float cos, float sin) {
  return __fsub_rn(__fmul_rn(low, cos), __fmul_rn(high, sin));
}
__device__ __forceinline__ float rotate_high(float low, float high, float cos, float sin) {
  return __fadd_rn(__fmul_rn(high, cos), __fmul_rn(low, sin));
}

// And those of rmsnorm_cpu.
__device__ __forceinline__ float4 scaled(float4 x, float scale, float4 w) {
  return make_float4(__fmul_rn(__fmul_rn(x.x, scale), w.x), __fmul_rn(__fmul_rn(x.y, scale), w.y),
                     __fmul_rn(__fmul_rn(x.z, scale), w.z), __fmul_rn(__fmul_rn(x.w, scale), w.w));
}

// 1 / sqrt(mean(x^2) + eps) of a head, of which a lane has columns lane, lane + 16, .. as BF16. All lanes of
// a warp call it.
template <int kCount>
__device__ __forceinline__ float inverse_rms_of(const uint32_t (&bits)[kCount], int head_dim,
                                                float eps) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float v = __uint_as_float(bits[i] << 16);
    sum = fmaf(v, v, sum);
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  const float mean = __fdiv_rn(sum, static_cast<float>(head_dim));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}
// Columns behind the last count as zeros, which leave the sum as it is; so all loads are under way at once.
template <int kTimes>
__device__ __forceinline__ float inverse_rms(const uint16_t* x, int head_dim, float eps) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  uint32_t bits[2 * kCols * kTimes];
#pragma unroll
  for (int i = 0; i < 2 * kCols * kTimes; ++i) {
    bits[i] = i * kLanes + lane < head_dim ? x[i * kLanes + lane] : 0u;
  }
  return inverse_rms_of(bits, head_dim, eps);
}

// Four columns of both halves of a head, rotated.
struct HalfPair {
  uint2 low, high;
};
__device__ __forceinline__ HalfPair rotate(float4 low, float4 high, float4 cos, float4 sin) {
  return {step::float4_to_bf16(make_float4(
              rotate_low(low.x, high.x, cos.x, sin.x), rotate_low(low.y, high.y, cos.y, sin.y),
              rotate_low(low.z, high.z, cos.z, sin.z), rotate_low(low.w, high.w, cos.w, sin.w))),
          step::float4_to_bf16(make_float4(
              rotate_high(low.x, high.x, cos.x, sin.x), rotate_high(low.y, high.y, cos.y, sin.y),
              rotate_high(low.z, high.z, cos.z, sin.z), rotate_high(low.w, high.w, cos.w, sin.w)))};
}

}  // namespace warproll::head
