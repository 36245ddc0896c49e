// attention_combine: grid (num_heads, B), block 256 threads: a CTA produces one head of a token that
// decode left in parts. Internal to kernels/step/attention.cu.
#pragma once

#include "kernels/step/attention_cache.cuh"

namespace warproll::attention {

// The parts of one head, folded in order: eight warps fetch 64 splits (or eight groups) at once.
struct Combiner {
  static constexpr int kWarps = 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kDims = kMaxAttentionHeadDim;

  const Partials& parts;
  int group, head_dim, head_in_group, first_unit, units;
  bool units_are_groups;

  // Unit `unit` joins; a lane has four dimensions.
  __device__ __forceinline__ void join(int unit, float2& state, float4& acc) const {
    const int64_t at = static_cast<int64_t>(first_unit + unit) * group + head_in_group;
    const int d = static_cast<int>(threadIdx.x) % 32 * 4;
    const float2 its = parts.states[at];
    float4 v = {};
    if (d < head_dim) v = *reinterpret_cast<const float4*>(parts.values + at * head_dim + d);
    const FoldFactors f = fold_max(state.x, its.x);
    state.y = fold(state.y, its.y, f);
    acc = make_float4(fold(acc.x, v.x, f), fold(acc.y, v.y, f), fold(acc.z, v.z, f),
                      fold(acc.w, v.w, f));
  }

  // This warp's group, from its splits or as it is.
  __device__ __forceinline__ void read_group(int index, float2& state, float4& acc) const {
    state = make_float2(minus_infinity(), 0.0f);
    acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (units_are_groups) return join(index, state, acc);
#pragma unroll
    for (int i = 0; i < kGroupSplits; ++i) {
      if (index * kGroupSplits + i < units) join(index * kGroupSplits + i, state, acc);
    }
  }

  __device__ __forceinline__ void run(uint16_t* out) const {
    __shared__ float2 states[kWarps];
    __shared__ float values[kWarps][kDims];
    const int groups = units_are_groups ? units : (units + kGroupSplits - 1) / kGroupSplits;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int d = static_cast<int>(threadIdx.x) % kDims;
    float2 total = make_float2(minus_infinity(), 0.0f);
    float acc = 0.0f;
    for (int first = 0; first < groups; first += kWarps) {
      if (first + warp < groups) {
        float2 state;
        float4 four;
        read_group(first + warp, state, four);
        if (lane == 0) states[warp] = state;
        *reinterpret_cast<float4*>(&values[warp][lane * 4]) = four;
      }
      __syncthreads();
      for (int i = 0; i < min(kWarps, groups - first); ++i) {
        const FoldFactors f = fold_max(total.x, states[i].x);
        total.y = fold(total.y, states[i].y, f);
        acc = fold(acc, values[i][d], f);
      }
      __syncthreads();
    }
    if (static_cast<int>(threadIdx.x) < head_dim) {
      reinterpret_cast<__nv_bfloat16*>(out)[d] =
          __float2bfloat16_rn(divide(acc, __frcp_rn(total.y)));
    }
  }
};

}  // namespace warproll::attention
