// build_lists: the body of build_expert_lists, for one CTA, shared with the router.
// Internal to kernels/moe/*.cu.
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/moe/expert_lists.h"
#include "kernels/router.h"

namespace warproll::moe {

inline constexpr int kListThreads = 1024;

struct ListScratch {
  int count[kMaxExperts];
  int next[kMaxExperts];  // where the expert's next pair goes
  int warp_pairs[32], warp_blocks[32], warp_active[32];
  int invalid;
};

// Exclusive prefix sums of three numbers a thread; returns the totals through `total`.
template <int kThreads>
__device__ __forceinline__ int3 exclusive_sums(int3 v, ListScratch& s, int3& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int3 sum = v;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int x = __shfl_up_sync(~0u, sum.x, step);
    const int y = __shfl_up_sync(~0u, sum.y, step);
    const int z = __shfl_up_sync(~0u, sum.z, step);
    if (lane >= step) sum = make_int3(sum.x + x, sum.y + y, sum.z + z);
  }
  if (lane == 31) {
    s.warp_pairs[warp] = sum.x;
    s.warp_blocks[warp] = sum.y;
    s.warp_active[warp] = sum.z;
  }
  __syncthreads();
  int3 before = make_int3(0, 0, 0);
  total = before;
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w == warp) before = total;
    total = make_int3(total.x + s.warp_pairs[w], total.y + s.warp_blocks[w],
                      total.z + s.warp_active[w]);
  }
  return make_int3(before.x + sum.x - v.x, before.y + sum.y - v.y, before.z + sum.z - v.z);
}

// The blocks of at most kPairs pairs of the expert's `count`, the first of which is at `first`.
template <int kPairs>
__device__ __forceinline__ void write_blocks(ExpertBlock* blocks, int expert, int first,
                                             int count) {
  for (int at = 0; at < count; at += kPairs) {
    *blocks++ = {.first = first + at,
                 .expert = static_cast<uint16_t>(expert),
                 .count = static_cast<uint16_t>(min(kPairs, count - at))};
  }
}

// All kThreads (>= kMaxExperts) threads of one CTA.
template <int kThreads>
__device__ void build_lists(const BuildExpertListsParams& p, ListScratch& s) {
  const int me = static_cast<int>(threadIdx.x);
  const int num_pairs = p.num_tokens * p.top_k;
  if (me < kMaxExperts) s.count[me] = 0;
  if (me == 0) s.invalid = 0;
  __syncthreads();
  for (int pair = me; pair < num_pairs; pair += kThreads) {
    const int expert = p.topk_ids[pair];
    const bool valid = expert >= 0 && expert < p.num_experts;
    atomicAdd(valid ? &s.count[expert] : &s.invalid, 1);
    p.lists.pair_weights[pair] = valid ? p.topk_weights[pair] : 0.0f;
  }
  __syncthreads();
  const int count = me < p.num_experts ? s.count[me] : 0;
  const int blocks = (count + kMaxBlockPairs - 1) / kMaxBlockPairs;
  const int large_blocks = (count + kLargeBlockPairs - 1) / kLargeBlockPairs;
  int3 total;
  // Both numbers of blocks in one sum: each is below 2^15.
  constexpr int kLarge = 1 << 16;
  const int3 at = exclusive_sums<kThreads>(
      make_int3(count, blocks + large_blocks * kLarge, count > 0), s, total);
  if (me < p.num_experts) s.next[me] = at.x;
  write_blocks<kMaxBlockPairs>(p.lists.blocks + at.y % kLarge, me, at.x, count);
  write_blocks<kLargeBlockPairs>(p.lists.large_blocks + at.y / kLarge, me, at.x, count);
  if (me == 0) {
    *p.lists.counts = {.num_blocks = total.y % kLarge,
                       .num_large_blocks = total.y / kLarge,
                       .num_active = total.z,
                       .num_pairs = total.x,
                       .num_invalid = s.invalid,
                       .next_gate_up = 0,
                       .next_down = 0};
  }
  __syncthreads();
  for (int pair = me; pair < num_pairs; pair += kThreads) {
    const int expert = p.topk_ids[pair];
    if (expert >= 0 && expert < p.num_experts) p.lists.pairs[atomicAdd(&s.next[expert], 1)] = pair;
  }
}

}  // namespace warproll::moe
