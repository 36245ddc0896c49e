// The arithmetic of add_rmsnorm's kernel, shared with those that have it as a prologue: what a thread
// does with its granules of four columns, in an order that H alone decides. Internal to kernels/.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/ptx.cuh"
#include "kernels/moe/tiles.h"
#include "kernels/step/residual_norm.h"
#include "kernels/step/vectors.cuh"

namespace warproll::step {

inline constexpr int kGranuleCols = 4;

__device__ __forceinline__ uint2 add_granules(uint2 old, float4 y) {
  const float4 x = bf16_to_float4(old);
  return float4_to_bf16(make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w));
}

// `squares` and the granule's.
__device__ __forceinline__ float add_squares(float squares, uint2 x) {
  const float4 v = bf16_to_float4(x);
  return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, squares))));
}

// The order of a warp, and then of the warps: squares of the first, the second, ..
__device__ __forceinline__ float sum_of_warp(float v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  return v;
}
__device__ __forceinline__ float max_of_warp(float v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, step));
  return v;
}

__device__ __forceinline__ float norm_scale(float squares, int hidden_size, float eps) {
  const float mean = __fdiv_rn(squares, static_cast<float>(hidden_size));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

// In the order and roundings of rmsnorm_cpu: no FMA.
__device__ __forceinline__ uint2 scale_granule(uint2 x, float scale, float4 w) {
  const float4 v = bf16_to_float4(x);
  return float4_to_bf16(
      make_float4(__fmul_rn(__fmul_rn(v.x, scale), w.x), __fmul_rn(__fmul_rn(v.y, scale), w.y),
                  __fmul_rn(__fmul_rn(v.z, scale), w.z), __fmul_rn(__fmul_rn(v.w, scale), w.w)));
}

__device__ __forceinline__ float largest_of_granule(uint2 x) {
  const float4 v = bf16_to_float4(x);
  return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

__device__ __forceinline__ void store_tile_granule(uint16_t* row, int col, uint2 normed,
                                                   float inverse) {
  const float4 v = bf16_to_float4(normed);
  *reinterpret_cast<__half2*>(row + tile_position(col)) =
      __floats2half2_rn(v.x * inverse, v.y * inverse);
  *reinterpret_cast<__half2*>(row + tile_position(col + 2)) =
      __floats2half2_rn(v.z * inverse, v.w * inverse);
}

// A thread's granules of a row of kResidualNormHidden columns, as add_rmsnorm's CTA of as many threads
// has them. Thread `me` of kThreads.
struct NormThread {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kGranules = 2;
  static_assert(kThreads * kGranules * kGranuleCols == kResidualNormHidden);

  static __device__ __forceinline__ int column(int me, int i) {
    return (i * kThreads + me) * kGranuleCols;
  }

  float4 weight[kGranules];
  // Before the previous kernel has ended.
  __device__ __forceinline__ void load_weight(const ResidualNorm& p, int me) {
#pragma unroll
    for (int i = 0; i < kGranules; ++i)
      weight[i] = load_weights(p.weight, p.weight_dtype, column(me, i));
  }

  // What a row is made of, on its way.
  struct Loaded {
    uint2 old[kGranules], addend[kGranules];
  };
  static __device__ __forceinline__ Loaded load(const ResidualNorm& p, int64_t token, int me) {
    Loaded l;
#pragma unroll
    for (int i = 0; i < kGranules; ++i) {
      const int64_t at = token * kResidualNormHidden + column(me, i);
      l.old[i] = *reinterpret_cast<const uint2*>(p.hidden + at);
      l.addend[i] = make_uint2(0, 0);
      if (p.addend != nullptr) l.addend[i] = *reinterpret_cast<const uint2*>(p.addend + at);
    }
    return l;
  }

  // The row after the addition; returns this thread's squares.
  static __device__ __forceinline__ float add(const ResidualNorm& p, const Loaded& l,
                                              uint2 (&x)[kGranules]) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kGranules; ++i) {
      x[i] = p.addend == nullptr ? l.old[i] : add_granules(l.old[i], bf16_to_float4(l.addend[i]));
      squares = add_squares(squares, x[i]);
    }
    return squares;
  }
  static __device__ __forceinline__ void store(uint16_t* rows, int64_t token, int me,
                                               const uint2 (&x)[kGranules]) {
#pragma unroll
    for (int i = 0; i < kGranules; ++i)
      *reinterpret_cast<uint2*>(rows + token * kResidualNormHidden + column(me, i)) = x[i];
  }

  // The row's norm; `sums` are those of the warps.
  __device__ __forceinline__ void normalise(const ResidualNorm& p, const float* sums,
                                            uint2 (&x)[kGranules]) const {
    float sum = sums[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += sums[w];
    const float scale = norm_scale(sum, kResidualNormHidden, p.eps);
#pragma unroll
    for (int i = 0; i < kGranules; ++i) x[i] = scale_granule(x[i], scale, weight[i]);
  }
};

}  // namespace warproll::step
