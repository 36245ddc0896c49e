// What the CTAs of attention_split.cuh keep in shared memory and hand each other, and the sums they fold.
// Internal to kernels/step/attention*.
#pragma once

#include "kernels/step/attention_fold.cuh"

namespace warproll::attention {

inline constexpr int kFoldCtas = kGroupSplits;  // the first of a cluster: they fold the heads

// kGroups: groups of splits that a cluster has, a CTA a split.
template <int kD, bool kHigh, int kGroups>
struct SplitShared {
  static constexpr int kChunks = kSplit / kChunk;
  static constexpr int kHeads = kHigh ? 2 : 1;      // that a CTA folds
  static constexpr int kScoresStride = kSplit + 8;  // float2 of four rows in different banks
  alignas(128) std::byte keys[kChunks][Rows<kD>::kBytes], values[kChunks][Rows<kD>::kBytes];
  float scores[8 * kHeads][kScoresStride];
  float part_values[kHeads][kGroups * kGroupSplits][kD];  // from CTA i, split i
  float2 part_states[kHeads][kGroups * kGroupSplits];
  uint64_t arrived;
};
template <int kD, bool kHigh, int kGroups>
struct FinishShared : SplitShared<kD, kHigh, kGroups> {
  using Base = SplitShared<kD, kHigh, kGroups>;
  alignas(128) std::byte queries[8 * Base::kHeads * kD * 2];  // piece_address
};

// A dimension of a head, and the head's max and sum.
struct Total {
  float2 state = make_float2(minus_infinity(), 0.0f);
  float acc = 0.0f;
  __device__ __forceinline__ void join(float2 its, float value) {
    const FoldFactors f = fold_max(state.x, its.x);
    state.y = fold(state.y, its.y, f);
    acc = fold(acc, value, f);
  }
};

}  // namespace warproll::attention
