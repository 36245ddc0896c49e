// Sequences of one new token. The CTAs share the units of all (sequence, KV head) evenly (attention_walk.cuh),
// each a run of consecutive units: a run that is the whole context of a pair ends in `out`, the units of
// the others in Partials. The CTA that arrives last for a group of splits makes one unit of it, and
// the one whose groups are the last of the pair folds them into `out`. Four warps: of
// a chunk's scores each computes 16 positions, of its values a quarter of the dimensions; between the
// two every warp has all scores and does the same softmax. The next chunk's scores are computed beside
// this one's values, so K is a chunk ahead of V.
// Internal to kernels/step/attention.cu.
#pragma once

#include "kernels/step/attention_fold.cuh"
#include "kernels/step/attention_walk.cuh"

namespace warproll::attention {

template <int kD, bool kHigh>
struct DecodeShared {
  static constexpr int kStages = 384 / kD;  // of K and of V: 96 KB
  static constexpr int kValuesOffset = kStages * Rows<kD>::kBytes;
  static constexpr int kScoresStride = kChunk + 8;  // float2 of four rows in different banks
  static constexpr int kScores = (kHigh ? 16 : 8) * kScoresStride;
  static constexpr int kScoresOffset = 2 * kValuesOffset;
  static constexpr int kLastOffset = kScoresOffset + 2 * kScores * static_cast<int>(sizeof(float));
  static constexpr int bytes(int num_sequences) { return kLastOffset + num_sequences * 4; }
};

template <int kD, bool kHigh>
class Decoder {
 public:
  __device__ __forceinline__ Decoder(const Params& p, std::byte* memory)
      : p_(p),
        rows_(ptx::shared_address(memory)),
        scores_(reinterpret_cast<float*>(memory + Shared::kScoresOffset)),
        last_(reinterpret_cast<int*>(memory + Shared::kLastOffset)) {}

  __device__ __forceinline__ void run() {
    if (!p_.op.indices_are_older) ptx::wait_for_previous_kernel();
    read_lasts(p_, last_);
    loads_ = start_walk(p_, last_);
    now_ = loads_;
    if (!loads_.done) find_next();
    int loaded = 0;
    if (p_.op.indices_are_older) {
      // Chunks without the new token can be on their way by now.
      if (p_.op.past_is_older && is_past(loads_)) {
        load_keys(0);
        while (loaded < Shared::kStages - 1 && (loads_.done || is_past(loads_))) load(loaded++);
      }
      ptx::wait_for_previous_kernel();
    }
    if (now_.done) return;
    if (loaded == 0 && !has_keys_) load_keys(0);
    for (; loaded < Shared::kStages - 1; ++loaded) load(loaded);
    reset();
    bool begins = true;  // a run: its first scores are still to be computed
    int stage = 0, scores = 0;
    while (!now_.done) {
      ptx::cp_async_wait<Shared::kStages - 2>();
      __syncthreads();  // V of this chunk and K of the next are there; all are through with the last
      if (begins) {
        enter_pair();
        float s[2][4] = {};
        multiply_queries(keys(stage), s);
        store_scores(s, now_.position, scores);
        __syncthreads();
      }
      const int next = stage + 1 == Shared::kStages ? 0 : stage + 1;
      load(stage == 0 ? Shared::kStages - 1 : stage - 1);
      chunk(keys(next), values(stage), scores);
      begins = finish_chunk();
      stage = next;
      scores ^= 1;
    }
  }

 private:
  using Shared = DecodeShared<kD, kHigh>;
  static constexpr int kTiles = kD / 8 / kWarps;  // of a warp's dimensions
  using LaneSums = Sums<kTiles>;
  static constexpr int kFoldBatch = kHigh ? 2 : 8;  // as many as registers allow

  __device__ __forceinline__ int warp() const { return static_cast<int>(threadIdx.x) / 32; }
  __device__ __forceinline__ int lane() const { return static_cast<int>(threadIdx.x) % 32; }
  __device__ __forceinline__ int token() const {
    return p_.one_token_each ? now_.sequence : p_.op.cu_seqlens_q[now_.sequence];
  }
  __device__ __forceinline__ int64_t head_row(int head_in_group) const {
    return attention::head_row(p_, token_, now_.kv_head, head_in_group);
  }

  __device__ __forceinline__ void find_next() {
    slots_ = find_slots(p_, loads_.sequence, loads_.position, last_[loads_.sequence]);
  }
  // Its chunk has no new token.
  __device__ __forceinline__ bool is_past(const Walk& w) const {
    return !w.done && w.position + kChunk <= last_[w.sequence];
  }
  __device__ __forceinline__ uint32_t keys(int stage) const {
    return rows_ + static_cast<uint32_t>(stage * Rows<kD>::kBytes);
  }
  __device__ __forceinline__ uint32_t values(int stage) const {
    return keys(stage) + Shared::kValuesOffset;
  }
  // V of the chunk whose K came last goes to `stage`, K of the next one to the stage behind; a group of
  // copies, empty at the end.
  __device__ __forceinline__ void load(int stage) {
    if (has_keys_) Rows<kD>(p_, p_.op.v_cache, value_head_).load(values(stage), value_slots_);
    load_keys(stage + 1 == Shared::kStages ? 0 : stage + 1);
    ptx::cp_async_commit();
  }
  __device__ __forceinline__ void load_keys(int stage) {
    has_keys_ = !loads_.done;
    if (loads_.done) return;
    value_slots_ = slots_;
    value_head_ = loads_.kv_head;
    Rows<kD>(p_, p_.op.k_cache, value_head_).load(keys(stage), slots_);
    loads_.next();
    if (!loads_.done) find_next();
  }

  __device__ __forceinline__ void enter_pair() {
    token_ = token();
    load_queries<kD, kHigh>(p_, token_, now_.kv_head, q_);
    finished_groups_ = 0;
  }

  // This warp's 16 positions of a chunk.
  __device__ __forceinline__ void multiply_queries(uint32_t keys, float (&s)[2][4]) const {
#pragma unroll
    for (int step = 0; step < kD / 16; ++step) {
      multiply_keys<kD>(keys, warp() * 16, step, q_[step], s[0], s[1]);
    }
  }
  __device__ __forceinline__ float* scores_row(int half, int buffer) const {
    return scores_ + buffer * Shared::kScores + (lane() / 4 + 8 * half) * Shared::kScoresStride +
           lane() % 4 * 2;
  }
  // `first`: position of the chunk.
  __device__ __forceinline__ void store_scores(float (&s)[2][4], int first, int buffer) const {
#pragma unroll
    for (int h = 0; h < (kHigh ? 2 : 1); ++h) {
      mask_scores(s, first + warp() * 16, h, last_[now_.sequence]);
      float* row = scores_row(h, buffer) + warp() * 16;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        *reinterpret_cast<float2*>(row + 8 * j) = make_float2(s[j][2 * h], s[j][2 * h + 1]);
      }
    }
  }

  // The chunk whose scores are in `scores`, and the scores of the next one of the run; behind a run's
  // last chunk they are never read.
  __device__ __forceinline__ void chunk(uint32_t next_keys, uint32_t values, int scores) {
    float s[8][4] = {}, next[2][4] = {};
#pragma unroll
    for (int h = 0; h < (kHigh ? 2 : 1); ++h) {
      const float* row = scores_row(h, scores);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 two = *reinterpret_cast<const float2*>(row + 8 * j);
        s[j][2 * h] = two.x;
        s[j][2 * h + 1] = two.y;
      }
    }
    multiply_queries(next_keys, next);
    softmax_chunk<kHigh>(s, p_.scale_log2, part_);
    multiply_values<kD, kHigh>(s, values, warp() * kTiles, part_.acc);
    store_scores(next, now_.position + kChunk, scores ^ 1);
  }

  // Behind the last chunk of a split, a group, a run. Whether a run begins.
  __device__ __forceinline__ bool finish_chunk() {
    const int behind = now_.position + kChunk;
    const bool ends = behind >= now_.end;
    const bool split_ends = ends || behind % kSplit == 0, group_ends = ends || behind % kGroup == 0;
    const int group = now_.position >> kGroupLog2;
    const bool groups = now_.whole || now_.unit_log2 == kGroupLog2 || has_all_of(group);
    const int unit = now_.first_unit + (now_.position >> now_.unit_log2);
    if (split_ends) {
      part_.template finish_split<kHigh>();
      if (groups) {
        group_.template fold_in<kHigh>(part_);
      } else {
        store(part_, unit);
      }
    }
    if (group_ends) {
      if (now_.whole) {
        total_.template fold_in<kHigh>(group_);
      } else if (groups) {
        store(group_, now_.first_unit + group * (kGroup >> now_.unit_log2));
        ++finished_groups_;
      } else {
        leave_group(group);
        reset();
      }
      group_.reset();
    }
    if (split_ends) part_.reset();
    if (ends) finish_run();
    now_.next();
    return ends;
  }

  // All sums are reset where others' parts have been folded: so they take no registers there.
  __device__ __forceinline__ void reset() {
    part_.reset();
    group_.reset();
    total_.reset();
  }
  __device__ __forceinline__ void finish_run() {
    if (now_.whole) {
      write();
    } else {
      leave_pair();
    }
    reset();
  }

  // This run has all splits of a group: it becomes a unit at once.
  __device__ __forceinline__ bool has_all_of(int group) const {
    return now_.begin <= group * kGroup &&
           min((group + 1) * kGroup, last_[now_.sequence] + 1) <= now_.end;
  }
  __device__ __forceinline__ GroupFolder<kD, kFoldBatch> folder() const {
    return {p_.partials, p_.group, p_.op.head_dim};
  }
  // The splits that this run has of a group are stored; other CTAs have the others.
  __device__ __forceinline__ void leave_group(int group) {
    const int first = now_.first_unit + group * kGroupSplits;
    const int count = min(kGroupSplits, now_.pair_units - group * kGroupSplits);
    const int first_cta = first / now_.quota;
    const auto ctas = static_cast<unsigned>((first + count - 1) / now_.quota - first_cta + 1);
    if (!arrive_last(p_.partials.tickets + first_cta, 1, ctas)) return;
    if (now_.pair_units <= kGroupSplits)
      return folder().fold_to_out(first, count, 1, p_.op.out + head_row(0));
    folder().fold_group(first, count);
    ++finished_groups_;
  }
  // Of a pair in which others have a part too.
  __device__ __forceinline__ void leave_pair() {
    if (finished_groups_ == 0) return;
    const int units_of_group = kGroup >> now_.unit_log2;
    const int groups = (now_.pair_units + units_of_group - 1) / units_of_group;
    unsigned* ticket = p_.partials.tickets + p_.decode_ctas + now_.first_unit / now_.quota;
    if (!arrive_last(ticket, static_cast<unsigned>(finished_groups_),
                     static_cast<unsigned>(groups)))
      return;
    folder().fold_to_out(now_.first_unit, groups, units_of_group, p_.op.out + head_row(0));
  }

  __device__ __forceinline__ void store(const LaneSums& sums, int unit) const {
#pragma unroll
    for (int h = 0; h < (kHigh ? 2 : 1); ++h) {
      const int row = lane() / 4 + 8 * h;
      if (row >= p_.group) break;
      const int64_t at = static_cast<int64_t>(unit) * p_.group + row;
      if (warp() == 0 && lane() % 4 == 0) {
        p_.partials.states[at] = make_float2(sums.max[h], sums.sum[h]);
      }
      float* values = p_.partials.values + at * p_.op.head_dim + lane() % 4 * 2;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int d = (warp() * kTiles + n) * 8;
        if (d >= p_.op.head_dim) break;
        *reinterpret_cast<float2*>(values + d) =
            make_float2(sums.acc[n][2 * h], sums.acc[n][2 * h + 1]);
      }
    }
  }

  __device__ __forceinline__ void write() const {
#pragma unroll
    for (int h = 0; h < (kHigh ? 2 : 1); ++h) {
      const int row = lane() / 4 + 8 * h;
      if (row >= p_.group) break;
      write_row(total_, h, p_.op.out + head_row(row), warp() * kTiles * 8, p_.op.head_dim);
    }
  }

  const Params& p_;
  const uint32_t rows_;  // shared: [2, kStages] K, V
  float* const scores_;  // shared, [2, 8 or 16, kScoresStride]
  int* const last_;      // shared, [B]
  Walk loads_, now_;     // loads_: of K
  Slots slots_;          // of the chunk that `loads_` is at
  Slots value_slots_;    // of the one before, whose V is still to come
  int value_head_;
  bool has_keys_ = false;  // there is one
  int token_;
  int finished_groups_;            // units of this pair that no other CTA adds to
  uint32_t q_[kD / 16][4];         // fragments
  LaneSums part_, group_, total_;  // of a split, a group, the context
};

}  // namespace warproll::attention
