// The last step of a MoE layer, shared by whoever does it: the K partial sums of four neighbouring
// outputs of a token, and writing what comes of them. Internal to kernels/*/*.cu.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/ptx.cuh"
#include "kernels/moe/launch.cuh"

namespace warproll::moe {

// Terms k .. k + kTerms - 1 of the sum; all loads are under way at once.
template <int kTerms>
__device__ __forceinline__ void add_terms(const float* weights, const float* at, int stride,
                                          float4& sum) {
  float4 v[kTerms];
  float weight[kTerms];
#pragma unroll
  for (int i = 0; i < kTerms; ++i) {
    v[i] = ptx::load_now(at + int64_t{i} * stride);
    weight[i] = weights[i];
  }
#pragma unroll
  for (int i = 0; i < kTerms; ++i) {
    if (weight[i] != 0.0f) {
      sum = make_float4(fmaf(weight[i], v[i].x, sum.x), fmaf(weight[i], v[i].y, sum.y),
                        fmaf(weight[i], v[i].z, sum.z), fmaf(weight[i], v[i].w, sum.w));
    }
  }
}

// Sum over k, in order, of weights[k] * the four floats at `at` + k * stride, for partials of h times
// kHiddenScale. A weight of 0 is a pair without an expert: it has no partial, anything may be there.
__device__ __forceinline__ float4 sum_of_partials(const float* weights, const float* at, int stride,
                                                  int top_k) {
  float4 sum = {};
  int k = 0;
  const auto term = [&] { return at + static_cast<int64_t>(k) * stride; };
  for (; k + 8 <= top_k; k += 8) add_terms<8>(weights + k, term(), stride, sum);
  if (k + 4 <= top_k) add_terms<4>(weights + k, term(), stride, sum), k += 4;
  if (k + 2 <= top_k) add_terms<2>(weights + k, term(), stride, sum), k += 2;
  if (k < top_k) add_terms<1>(weights + k, term(), stride, sum);
  constexpr float kUp = 1.0f / kHiddenScale;
  return make_float4(sum.x * kUp, sum.y * kUp, sum.z * kUp, sum.w * kUp);
}

// Into y_f32, or where that is null into y, rounded.
__device__ __forceinline__ void store_outputs(__nv_bfloat16* y, float* y_f32, int64_t at,
                                              float4 v) {
  if (y_f32 != nullptr) {
    *reinterpret_cast<float4*>(y_f32 + at) = v;
  } else {
    const __nv_bfloat162 two[2] = {__floats2bfloat162_rn(v.x, v.y),
                                   __floats2bfloat162_rn(v.z, v.w)};
    *reinterpret_cast<uint2*>(y + at) = *reinterpret_cast<const uint2*>(two);
  }
}

}  // namespace warproll::moe
