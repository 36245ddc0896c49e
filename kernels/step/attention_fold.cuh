// How the parts that decode CTAs leave are put together, in the order of positions, by the CTA that comes
// last. Internal to kernels/step/attention.cu.
#pragma once

#include "kernels/step/attention_cache.cuh"

namespace warproll::attention {

// Of a KV head's G heads, by the 128 threads of a decode CTA: sixteen lanes take a head, a lane four
// dimensions of every 64. Each unit that is read was written by CTAs that have arrived.
// kBatch: units on their way at once.
template <int kD, int kBatch>
struct GroupFolder {
  static constexpr int kLanes = 16;
  static constexpr int kHeads = attention::kThreads / kLanes;  // at once
  static constexpr int kQuads = kD / 64;
  struct HeadSums {
    float2 state;
    float4 acc[kQuads];
  };

  const Partials& parts;
  int group, head_dim;

  static __device__ __forceinline__ int dim(int quad) {
    return quad * 64 + static_cast<int>(threadIdx.x) % kLanes * 4;
  }
  __device__ __forceinline__ int64_t row(int unit, int head) const {
    return static_cast<int64_t>(unit) * group + head;
  }

  // Units first, first + stride, .. join in order.
  __device__ __forceinline__ HeadSums fold_units(int head, int first, int count, int stride) const {
    HeadSums sums;
    sums.state = make_float2(minus_infinity(), 0.0f);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) sums.acc[q] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    for (int base = 0; base < count; base += kBatch) {
      float2 states[kBatch];
      float4 values[kBatch][kQuads];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        // Behind the last: it again, so that no load waits for a branch.
        const int64_t at = row(first + max(min(base + i, count - 1), 0) * stride, head);
        states[i] = __ldcg(parts.states + at);
#pragma unroll
        for (int q = 0; q < kQuads; ++q) {
          values[i][q] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
          if (dim(q) < head_dim) {
            values[i][q] =
                __ldcg(reinterpret_cast<const float4*>(parts.values + at * head_dim + dim(q)));
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (base + i >= count) continue;
        const FoldFactors f = fold_max(sums.state.x, states[i].x);
        sums.state.y = fold(sums.state.y, states[i].y, f);
#pragma unroll
        for (int q = 0; q < kQuads; ++q) {
          const float4 v = values[i][q];
          float4& acc = sums.acc[q];
          acc = make_float4(fold(acc.x, v.x, f), fold(acc.y, v.y, f), fold(acc.z, v.z, f),
                            fold(acc.w, v.w, f));
        }
      }
    }
    return sums;
  }

  template <class Use>
  __device__ __forceinline__ void for_heads(int first, int count, int stride,
                                            const Use& use) const {
#pragma unroll 1
    for (int base = 0; base < group; base += kHeads) {
      const int head = base + static_cast<int>(threadIdx.x) / kLanes;
      const bool is_head = head < group;
      const HeadSums sums = fold_units(is_head ? head : 0, first, is_head ? count : 0, stride);
      __syncwarp();  // what was read may be written
      if (is_head) use(head, sums);
    }
  }

  // The splits of a group become one unit in the place of their first.
  __device__ __forceinline__ void fold_group(int first, int count) const {
    for_heads(first, count, 1, [&](int head, const HeadSums& sums) {
      const int64_t at = row(first, head);
      if (threadIdx.x % kLanes == 0) parts.states[at] = sums.state;
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        if (dim(q) < head_dim)
          *reinterpret_cast<float4*>(parts.values + at * head_dim + dim(q)) = sums.acc[q];
      }
    });
  }

  // `out` is that of the first head.
  __device__ __forceinline__ void fold_to_out(int first, int count, int stride,
                                              uint16_t* out) const {
    for_heads(first, count, stride, [&](int head, const HeadSums& total) {
      const float reciprocal = __frcp_rn(total.state.y);
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        if (dim(q) >= head_dim) break;
        const float4 v = total.acc[q];
        auto* to =
            reinterpret_cast<__nv_bfloat162*>(out + static_cast<int64_t>(head) * head_dim + dim(q));
        to[0] = __floats2bfloat162_rn(divide(v.x, reciprocal), divide(v.y, reciprocal));
        to[1] = __floats2bfloat162_rn(divide(v.z, reciprocal), divide(v.w, reciprocal));
      }
    });
  }
};

// All threads of a CTA, once what it adds is stored: its `mine` of the `all` arrivals that `ticket`
// counts. Whether they are the last: then everybody's are visible, and the ticket is 0 again.
__device__ __forceinline__ bool arrive_last(unsigned* ticket, unsigned mine, unsigned all) {
  __threadfence();
  __syncthreads();
  bool last = false;
  if (threadIdx.x == 0) {
    last = atomicAdd(ticket, mine) + mine == all;
    if (last) *ticket = 0;
  }
  if (__syncthreads_or(last) == 0) return false;
  __threadfence();
  return true;
}

}  // namespace warproll::attention
