// What the CTAs of attention_split.cuh hand each other: a split's sums to the CTAs that fold heads, and what these
// make of them. Internal to kernels/step/attention.cu.
#pragma once

#include "kernels/cuda/cluster.cuh"
#include "kernels/step/attention_cache.cuh"
#include "kernels/step/attention_split_shared.cuh"

namespace warproll::attention {

// A CTA's place, and its split's sums. Shared: SplitShared, or what is derived of it.
template <int kD, bool kHigh, int kGroups, class Shared>
class SplitFolder {
 protected:
  static constexpr int kTiles = kD / 8 / kWarps;  // of a warp's dimensions

  __device__ __forceinline__ SplitFolder(const Params& p, std::byte* memory)
      : p_(p), shared_(*reinterpret_cast<Shared*>(memory)) {}

  __device__ __forceinline__ int warp() const { return static_cast<int>(threadIdx.x) / 32; }
  __device__ __forceinline__ int lane() const { return static_cast<int>(threadIdx.x) % 32; }
  __device__ __forceinline__ uint32_t arrived() const {
    return ptx::shared_address(&shared_.arrived);
  }
  __device__ __forceinline__ int first_group() const { return group_ / kGroups * kGroups; }
  // That position `last_` lets a group, or the cluster, have.
  __device__ __forceinline__ int splits_of(int group) const {
    const int behind = last_ - group * kGroup;
    if (kGroups > 1 && behind < 0) return 0;  // else the cluster has nothing to do
    return min(kGroupSplits, behind / kSplit + 1);
  }
  __device__ __forceinline__ int cluster_splits() const {
    int splits = splits_;
    if constexpr (kGroups == 2) splits = splits_of(first_group()) + splits_of(first_group() + 1);
    return splits;
  }
  // Whether this CTA folds heads, and how many.
  __device__ __forceinline__ bool folds() const {
    return rank_ < p_.group && group_ == first_group();
  }
  __device__ __forceinline__ int num_heads() const {
    return (p_.group - rank_ + kFoldCtas - 1) / kFoldCtas;
  }

  // Each head's sums to the CTA that folds it.
  __device__ __forceinline__ void send() const {
    const int part = (group_ - first_group()) * kGroupSplits + rank_;
#pragma unroll
    for (int h = 0; h < (kHigh ? 2 : 1); ++h) {
      const int to = lane() / 4;
      if (to + 8 * h >= p_.group) break;
      const auto there = [&](const void* here) {
        return ptx::address_in_cluster(ptx::shared_address(here), static_cast<uint32_t>(to));
      };
      const uint32_t barrier = there(&shared_.arrived);
      if (warp() == 0 && lane() % 4 == 0) {
        ptx::store_to_cluster(there(&shared_.part_states[h][part]),
                              make_float2(part_.max[h], part_.sum[h]), barrier);
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int d = (warp() * kTiles + n) * 8;
        if (d >= p_.op.head_dim) break;
        ptx::store_to_cluster(there(&shared_.part_values[h][part][d + lane() % 4 * 2]),
                              make_float2(part_.acc[n][2 * h], part_.acc[n][2 * h + 1]), barrier);
      }
    }
  }

  // By the CTAs that fold.
  __device__ __forceinline__ void receive() const {
    const int d = static_cast<int>(threadIdx.x), heads = num_heads();
    const int groups = last_ / kGroup + 1;
    ptx::mbarrier_wait(arrived(), 0);
    if (d < p_.op.head_dim) {
      for (int h = 0; h < heads; ++h) {
        const int head = rank_ + h * kFoldCtas;
        const Total total = fold_splits(h, 0, splits_);
        if (groups == 1) {
          write(head, total);
        } else if constexpr (kGroups == 2) {  // all that there are
          Total both;
          both.join(total.state, total.acc);
          const Total second = fold_splits(h, 1, splits_of(first_group() + 1));
          both.join(second.state, second.acc);
          write(head, both);
        } else {
          if (d == 0) p_.partials.states[unit_row(group_, head)] = total.state;
          p_.partials.values[unit_row(group_, head) * p_.op.head_dim + d] = total.acc;
        }
      }
    }
    if constexpr (kGroups == 1) {
      if (groups == 1) return;
      if (!arrive_last(p_.partials.tickets + pair_ * kFoldCtas + rank_, 1,
                       static_cast<unsigned>(groups)))
        return;
      if (d < p_.op.head_dim) {
        for (int h = 0; h < heads; ++h) fold_groups(rank_ + h * kFoldCtas, groups);
      }
    }
  }

  const Params& p_;
  Shared& shared_;
  int rank_, group_, pair_, sequence_, kv_head_, token_;
  int first_, last_;  // positions: of the split, of the sequence
  int splits_;        // of the group
  Sums<kTiles> part_;

 private:
  __device__ __forceinline__ void write(int head, const Total& total) const {
    reinterpret_cast<__nv_bfloat16*>(
        p_.op.out)[head_row(p_, token_, kv_head_, head) + threadIdx.x] =
        __float2bfloat16_rn(divide(total.acc, __frcp_rn(total.state.y)));
  }
  __device__ __forceinline__ int64_t unit_row(int group, int head) const {
    return (static_cast<int64_t>(pair_) * p_.pair_groups + group) * p_.group + head;
  }

  // A dimension of head `h` of this CTA's, of the cluster's group `group`.
  __device__ __forceinline__ Total fold_splits(int h, int group, int splits) const {
    Total total;
#pragma unroll
    for (int i = 0; i < kGroupSplits; ++i) {  // an empty part changes nothing, and costs no branch
      const bool is_part = i < splits;
      const float2 state = shared_.part_states[h][group * kGroupSplits + i];
      const float value = shared_.part_values[h][group * kGroupSplits + i][threadIdx.x];
      total.join(is_part ? state : make_float2(minus_infinity(), 0.0f), is_part ? value : 0.0f);
    }
    return total;
  }

  __device__ __forceinline__ void fold_groups(int head, int groups) const {
    Total total;
#pragma unroll 4
    for (int group = 0; group < groups; ++group) {
      const int64_t at = unit_row(group, head);
      total.join(__ldcg(p_.partials.states + at),
                 __ldcg(p_.partials.values + at * p_.op.head_dim + threadIdx.x));
    }
    write(head, total);
  }
};

}  // namespace warproll::attention
