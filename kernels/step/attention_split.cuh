// Sequences of one new token where they are few: a cluster of eight CTAs for each group of splits that a
// (sequence, KV head) can have, a CTA a split. All of its K and V are on their way at once, before the
// previous kernel has ended but for the new token's. The CTAs hand each other their sums: CTA r folds the
// splits of heads r and r + 8 into `out`, or into a unit of Partials where there are several groups; then
// the CTA that comes last for these heads folds the groups. Or, with kGroups 2, a cluster of sixteen for
// the two groups there are, and its first eight CTAs fold both.
// Four warps, as attention_decode.cuh. With kFinish there are more, which help with what qkv_finish does
// (attention_finish.cuh) and then only keep the barriers; q, and the new token's K and V, come from there.
// Internal to kernels/step/attention.cu.
#pragma once

#include <type_traits>

#include "kernels/step/attention_finish.cuh"
#include "kernels/step/attention_split_fold.cuh"

namespace warproll::attention {

// qkv_finish has been.
struct NothingToFinish {
  static constexpr int kThreads = attention::kThreads;
};

template <int kD, bool kHigh, bool kFinish, int kGroups>
using SharedOfSplit =
    std::conditional_t<kFinish, FinishShared<kD, kHigh, kGroups>, SplitShared<kD, kHigh, kGroups>>;

template <int kD, bool kHigh, bool kFinish, int kGroups>
class SplitDecoder : SplitFolder<kD, kHigh, kGroups, SharedOfSplit<kD, kHigh, kFinish, kGroups>> {
  using Finisher = std::conditional_t<kFinish, HeadFinisher<kD, kHigh>, NothingToFinish>;

 public:
  static constexpr int kCtaThreads = Finisher::kThreads;
  static constexpr int kClusterCtas = kGroups * kGroupSplits;
  using Shared = SharedOfSplit<kD, kHigh, kFinish, kGroups>;

  // `finish`: QkvFinishParams, with kFinish.
  template <class... Finish>
  __device__ __forceinline__ SplitDecoder(const Params& p, std::byte* memory,
                                          const Finish&... finish)
      : Folder(p, memory), finisher_{finish...} {}

  __device__ __forceinline__ void run() {
    if constexpr (kFinish) finisher_.load_weights();
    if (!find_split()) {
      if constexpr (kFinish) {
        if (group_ == 0) {  // the position is negative
          if (p_.op.indices_are_older) ptx::wait_for_previous_kernel();
          count_invalid();
        }
      }
      return;
    }
    const bool has_split = rank_ < splits_;
    const int row = last_ - first_;
    if constexpr (kFinish) {
      if (has_split) finisher_.load_angles(last_);
    }
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(arrived(), 1);
      ptx::fence_mbarrier_init();
      // Everybody's sums of our heads.
      const int heads = folds() ? num_heads() : 0;
      const int bytes = p_.op.head_dim * static_cast<int>(sizeof(float)) + int{sizeof(float2)};
      ptx::mbarrier_arrive_expect(arrived(),
                                  static_cast<uint32_t>(heads * cluster_splits() * bytes));
    }
    __syncthreads();
    ptx::cluster_arrive();
    // The new token's row comes later.
    if (!p_.op.past_is_older && p_.op.indices_are_older) ptx::wait_for_previous_kernel();
    if (has_split) load(row);
    if constexpr (kFinish) {
      if (has_split) prepare_heads(row);
    }
    if (p_.op.indices_are_older) ptx::wait_for_previous_kernel();
    if (has_split) {
      if constexpr (kFinish) {
        if (row_is_cached_) load_row(row);
        if (finishes_) finisher_.run(finished_);
      } else {
        load_queries<kD, kHigh>(p_, token_, kv_head_, q_);
        if (row < kSplit) load_row(row);
      }
      ptx::cp_async_commit();
      compute();
    }
    if constexpr (kFinish) count_invalid();
    ptx::cluster_wait();
    if (has_split && multiplies()) send();
    if (folds()) receive();
  }

 private:
  using Folder = SplitFolder<kD, kHigh, kGroups, Shared>;
  using Folder::arrived, Folder::cluster_splits, Folder::first_group, Folder::folds, Folder::lane,
      Folder::num_heads, Folder::receive, Folder::send, Folder::splits_of, Folder::warp;
  using Folder::first_, Folder::group_, Folder::kTiles, Folder::kv_head_, Folder::last_, Folder::p_,
      Folder::pair_, Folder::part_, Folder::rank_, Folder::sequence_, Folder::shared_,
      Folder::splits_, Folder::token_;
  static constexpr int kChunks = Shared::kChunks;

  // The others have no part in sums.
  __device__ __forceinline__ bool multiplies() const { return !kFinish || warp() < kWarps; }
  // False: the whole cluster has nothing to do.
  __device__ __forceinline__ bool find_split() {
    rank_ = static_cast<int>(ptx::cluster_rank()) % kGroupSplits;
    group_ = static_cast<int>(blockIdx.x) / kGroupSplits;
    kv_head_ = static_cast<int>(blockIdx.y);
    sequence_ = static_cast<int>(blockIdx.z);
    pair_ = sequence_ * p_.op.num_kv_heads + kv_head_;
    first_ = group_ * kGroup + rank_ * kSplit;
    if (!p_.op.indices_are_older) ptx::wait_for_previous_kernel();
    // The table is read beside the position, not behind it.
    const int end = p_.op.blocks_per_sequence * p_.op.block_tokens;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      slots_[c] = find_slots(p_, sequence_, first_ + c * kChunk, end - 1);
    }
    token_ = sequence_;
    if constexpr (kFinish) finisher_.load_slot(token_);
    if (!kFinish && !p_.one_token_each) {
      token_ = p_.op.cu_seqlens_q[sequence_];
      if (query_tokens(p_.op, sequence_) != 1) return false;
    }
    last_ = p_.op.positions[token_];
    splits_ = splits_of(group_);
    return last_ >= first_group() * kGroup;
  }

  __device__ __forceinline__ Slots slots(int chunk) const {
    const int position = first_ + chunk * kChunk + lane();
    return {position <= last_ ? slots_[chunk].low : kNoSlot,
            position + 32 <= last_ ? slots_[chunk].high : kNoSlot};
  }
  __device__ __forceinline__ void load(int later) const {
    if (!multiplies()) return;
    const Rows<kD> k(p_, p_.op.k_cache, kv_head_), v(p_, p_.op.v_cache, kv_head_);
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
      k.load_but(ptx::shared_address(shared_.keys[c]), slots(c), later - c * kChunk);
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
      v.load_but(ptx::shared_address(shared_.values[c]), slots(c), later - c * kChunk);
  }
  // Of row `row` of the split.
  __device__ __forceinline__ int slot_of(int row) const {
    const Slots s = row < kChunk ? slots_[0] : slots_[1];
    return __shfl_sync(~0u, row % kChunk < 32 ? s.low : s.high, row % 32);
  }
  // Row `row` of the split: K by some threads, V by as many others.
  __device__ __forceinline__ void load_row(int row) const {
    const int chunk = row / kChunk, at = row % kChunk, slot = slot_of(row);
    const int which = static_cast<int>(threadIdx.x) / Rows<kD>::kPieces;
    if (which >= 2) return;
    const Rows<kD> rows(p_, which == 0 ? p_.op.k_cache : p_.op.v_cache, kv_head_);
    rows.load_row(ptx::shared_address(which == 0 ? shared_.keys[chunk] : shared_.values[chunk]), at,
                  slot);
  }

  // A token with an invalid position, once.
  __device__ __forceinline__ void count_invalid() const {
    if (threadIdx.x == 0 && rank_ == 0 && group_ == 0 && kv_head_ == 0) finisher_.count(last_);
  }
  // row: of the new token in the split, which may lie behind it.
  __device__ __forceinline__ void prepare_heads(int row) {
    finisher_.find_head(token_, kv_head_, p_.group);
    const bool has_row = row < kSplit;
    const int slot = has_row ? finisher_.stored_slot(last_) : kNoSlot;
    // What is not stored there is read from there, as if qkv_finish had left it.
    const bool is_read = has_row && slot != kNoSlot && slot == slot_of(row);
    row_is_cached_ = has_row && !is_read;
    if (Finisher::is_query()) {
      const int head = Finisher::item();
      finished_ = {ptx::shared_address(shared_.queries), head,
                   head < p_.group && finisher_.is_valid(last_), nullptr};
      finishes_ = head / 2 * 2 < p_.group;
    } else {
      const auto& rows = Finisher::is_value() ? shared_.values : shared_.keys;
      finished_ = {ptx::shared_address(rows[row / kChunk % kChunks]), row % kChunk, is_read,
                   slot == kNoSlot ? nullptr : finisher_.cache_row(slot, kv_head_)};
      finishes_ = slot != kNoSlot;
    }
    if (Finisher::is_query() || is_read) Finisher::clear(finished_);
    __syncwarp();
  }

  __device__ __forceinline__ void read_finished_queries() {
    const uint32_t rows = ptx::shared_address(shared_.queries);
    if constexpr (kHigh) {
#pragma unroll
      for (int step = 0; step < kD / 16; ++step)
        ptx::ldmatrix_x4(q_[step], piece_address<kD>(rows, lane() % 16, 2 * step + lane() / 16));
    } else {
#pragma unroll
      for (int step = 0; step < kD / 16; step += 2) {
        uint32_t four[4];
        ptx::ldmatrix_x4(four, piece_address<kD>(rows, lane() % 8, 2 * step + lane() / 8));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          q_[step + i / 2][i % 2 * 2] = four[i];
          q_[step + i / 2][i % 2 * 2 + 1] = zero_register();
        }
      }
    }
  }

  // Chunks behind the last position change nothing.
  __device__ __forceinline__ void compute() {
    ptx::cp_async_wait<0>();
    __syncthreads();
    if (multiplies()) {
      if constexpr (kFinish) read_finished_queries();
      write_scores();
    }
    __syncthreads();
    if (multiplies()) add_values();
  }
  __device__ __forceinline__ void write_scores() const {
    const int column = lane() % 4 * 2;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float s[2][4] = {};
#pragma unroll
      for (int step = 0; step < kD / 16; ++step) {
        multiply_keys<kD>(ptx::shared_address(shared_.keys[c]), warp() * 16, step, q_[step], s[0],
                          s[1]);
      }
#pragma unroll
      for (int h = 0; h < (kHigh ? 2 : 1); ++h) {
        const int at = c * kChunk + warp() * 16;
        mask_scores(s, first_ + at, h, last_);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          *reinterpret_cast<float2*>(&shared_.scores[lane() / 4 + 8 * h][at + 8 * j + column]) =
              make_float2(s[j][2 * h], s[j][2 * h + 1]);
        }
      }
    }
  }
  __device__ __forceinline__ void add_values() {
    const int column = lane() % 4 * 2;
    part_.reset();
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float s[8][4] = {};
#pragma unroll
      for (int h = 0; h < (kHigh ? 2 : 1); ++h) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float2 two = *reinterpret_cast<const float2*>(
              &shared_.scores[lane() / 4 + 8 * h][c * kChunk + 8 * j + column]);
          s[j][2 * h] = two.x;
          s[j][2 * h + 1] = two.y;
        }
      }
      softmax_chunk<kHigh>(s, p_.scale_log2, part_);
      multiply_values<kD, kHigh>(s, ptx::shared_address(shared_.values[c]), warp() * kTiles,
                                 part_.acc);
    }
    part_.template finish_split<kHigh>();
  }

  Slots slots_[kChunks];
  uint32_t q_[kD / 16][4];  // fragments
  Finisher finisher_;
  FinishedRow finished_;
  bool row_is_cached_;  // the new row is in this split and comes from the cache
  bool finishes_;       // this warp has a head to finish
};

}  // namespace warproll::attention
