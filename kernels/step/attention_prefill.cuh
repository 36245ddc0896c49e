// Sequences of several new tokens: a CTA takes kTileRows / G consecutive tokens of a sequence, times
// the G heads of a KV head, through the context. Four warps of 16 rows share the K and V of a chunk.
// Internal to kernels/step/attention.cu.
#pragma once

#include "kernels/step/attention_cache.cuh"

namespace warproll::attention {

inline constexpr int kTileRows = 16 * kWarps;

template <int kD>
struct PrefillShared {
  static constexpr int kStages = 2;
  static constexpr int kStageBytes = 2 * Rows<kD>::kBytes;  // K, then V, of a chunk
  static constexpr int kQueriesOffset = kStages * kStageBytes;
  static constexpr int kTotalOffset = kQueriesOffset + kTileRows * kD * 2;
  static constexpr int kStatesOffset = kTotalOffset + kTileRows * kD * 4;
  static constexpr int kBytes = kStatesOffset + kTileRows * 8;  // two CTAs an SM at D = 128
};

// Tiles that T tokens in B sequences can need at most.
inline int64_t max_prefill_tiles(int num_tokens, int num_sequences, int tile_tokens) {
  const int64_t several = num_sequences < num_tokens / 2 ? num_sequences : num_tokens / 2;
  return (num_tokens + several * (tile_tokens - 1)) / tile_tokens;
}

template <int kD>
class Prefiller {
 public:
  __device__ __forceinline__ Prefiller(const Params& p, std::byte* memory)
      : p_(p),
        memory_(ptx::shared_address(memory)),
        totals_(reinterpret_cast<float4*>(memory + Shared::kTotalOffset)),
        states_(reinterpret_cast<float2*>(memory + Shared::kStatesOffset)) {}

  // Tile `index` of all sequences' tiles.
  __device__ __forceinline__ void run(int index, int kv_head) {
    ptx::wait_for_previous_kernel();
    if (!find_tile(index)) return;
    kv_head_ = kv_head;
    load_queries();
    slots_ = find_slots(p_, sequence_, 0, tile_last_);
    load(0, 0);
    part_.reset();
    group_.reset();
    for (int first = 0; first <= tile_last_; first += kChunk) {
      const int stage = first / kChunk % 2;
      ptx::cp_async_wait<0>();
      __syncthreads();  // this stage is there, and everyone is through with the other
      load(first + kChunk, stage ^ 1);
      if (first <= warp_last_) chunk(first, stage_at(stage));
      const int behind = first + kChunk;
      if (behind % kSplit == 0) finish_split();
      if (behind % kGroup == 0 && behind <= tile_last_) finish_group(behind > kGroup);
    }
    // What is still open; an empty part changes nothing.
    finish_split();
    fold_total(tile_last_ >= kGroup);
    write();
  }

 private:
  using Shared = PrefillShared<kD>;
  static constexpr int kTiles = kD / 8;

  __device__ __forceinline__ int warp() const { return static_cast<int>(threadIdx.x) / 32; }
  __device__ __forceinline__ int lane() const { return static_cast<int>(threadIdx.x) % 32; }
  __device__ __forceinline__ int row(int half) const { return warp() * 16 + lane() / 4 + 8 * half; }
  __device__ __forceinline__ uint32_t stage_at(int stage) const {
    return memory_ + static_cast<uint32_t>(stage * Shared::kStageBytes);
  }
  // Row r of the tile in q and out.
  __device__ __forceinline__ int64_t head_row(int r) const {
    const int token = first_token_ + r / p_.group;
    const int64_t head =
        static_cast<int64_t>(token) * p_.op.num_heads + kv_head_ * p_.group + r % p_.group;
    return head * p_.op.head_dim;
  }
  __device__ __forceinline__ int num_rows() const { return tokens_ * p_.group; }

  __device__ __forceinline__ bool find_tile(int index) {
    const auto tiles = [&](int b) {
      const int tokens = query_tokens(p_.op, b);
      return tokens < 2 ? 0 : (tokens + p_.tile_tokens - 1) / p_.tile_tokens;
    };
    const Found found = find_item(index, p_.op.num_sequences, tiles);
    if (found.index == p_.op.num_sequences) return false;
    sequence_ = found.index;
    first_token_ = p_.op.cu_seqlens_q[sequence_] + (index - found.before) * p_.tile_tokens;
    tokens_ = min(p_.tile_tokens, p_.op.cu_seqlens_q[sequence_ + 1] - first_token_);
    tile_last_ = -1;
    for (int i = lane(); i < tokens_; i += 32) {
      tile_last_ = max(tile_last_, p_.op.positions[first_token_ + i]);
    }
    tile_last_ = __reduce_max_sync(~0u, tile_last_);
    for (int h = 0; h < 2; ++h) {
      last_[h] = row(h) < num_rows() ? p_.op.positions[first_token_ + row(h) / p_.group] : -1;
    }
    warp_last_ = __reduce_max_sync(~0u, max(last_[0], last_[1]));
    return true;
  }

  __device__ __forceinline__ void load_queries() {
    constexpr int kPieces = Rows<kD>::kPieces, kPassRows = Rows<kD>::kPassRows;
    const int piece = static_cast<int>(threadIdx.x) % kPieces;
    for (int r = static_cast<int>(threadIdx.x) / kPieces; r < kTileRows; r += kPassRows) {
      const bool valid = r < num_rows() && piece * 8 < p_.op.head_dim;
      ptx::cp_async_16(piece_address<kD>(memory_ + Shared::kQueriesOffset, r, piece),
                       p_.op.q + (valid ? head_row(r) + piece * 8 : 0), valid);
    }
  }

  // The chunk at `first`, if there is one.
  __device__ __forceinline__ void load(int first, int stage) {
    if (first <= tile_last_) {
      const uint32_t keys = stage_at(stage);
      Rows<kD>(p_, p_.op.k_cache, kv_head_).load(keys, slots_);
      Rows<kD>(p_, p_.op.v_cache, kv_head_).load(keys + Rows<kD>::kBytes, slots_);
      slots_ = find_slots(p_, sequence_, first + kChunk, tile_last_);
    }
    ptx::cp_async_commit();
  }

  __device__ __forceinline__ void chunk(int first, uint32_t stage) {
    float s[8][4] = {};
#pragma unroll 2  // registers are scarce
    for (int step = 0; step < kD / 16; ++step) {
      uint32_t a[4];
      ptx::ldmatrix_x4(a, piece_address<kD>(memory_ + Shared::kQueriesOffset,
                                            warp() * 16 + lane() % 16, 2 * step + lane() / 16));
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        multiply_keys<kD>(stage, 8 * j, step, a, s[j], s[j + 1]);
      }
    }
    for (int h = 0; h < 2; ++h) {
      if (first + kChunk - 1 > last_[h]) mask_scores(s, first, h, last_[h]);
    }
    softmax_chunk<true>(s, p_.scale_log2, part_);
    multiply_values<kD, true>(s, stage + Rows<kD>::kBytes, 0, part_.acc);
  }

  __device__ __forceinline__ void finish_split() {
    part_.template finish_split<true>();
    group_.template fold_in<true>(part_);
    part_.reset();
  }

  // group_ becomes the sums of everything so far. Those of the groups before it lie in shared memory
  // if there are any: `stored`.
  __device__ __forceinline__ void fold_total(bool stored) {
    FoldFactors f[2];
    for (int h = 0; h < 2; ++h) {
      float2 own = make_float2(minus_infinity(), 0.0f);
      if (stored) own = states_[row(h)];
      f[h] = fold_max(own.x, group_.max[h]);
      group_.max[h] = own.x;
      group_.sum[h] = fold(own.y, group_.sum[h], f[h]);
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float4 own = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (stored) own = totals_[n * kThreads + threadIdx.x];
      group_.acc[n][0] = fold(own.x, group_.acc[n][0], f[0]);
      group_.acc[n][1] = fold(own.y, group_.acc[n][1], f[0]);
      group_.acc[n][2] = fold(own.z, group_.acc[n][2], f[1]);
      group_.acc[n][3] = fold(own.w, group_.acc[n][3], f[1]);
    }
  }
  __device__ __forceinline__ void finish_group(bool stored) {
    fold_total(stored);
    __syncwarp();  // the four lanes of a row have read its state
    for (int h = 0; h < 2; ++h) {
      if (lane() % 4 == 0) states_[row(h)] = make_float2(group_.max[h], group_.sum[h]);
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      totals_[n * kThreads + threadIdx.x] =
          make_float4(group_.acc[n][0], group_.acc[n][1], group_.acc[n][2], group_.acc[n][3]);
    }
    group_.reset();
  }

  __device__ __forceinline__ void write() const {
    for (int h = 0; h < 2; ++h) {
      if (row(h) < num_rows()) {
        write_row(group_, h, p_.op.out + head_row(row(h)), 0, p_.op.head_dim);
      }
    }
  }

  const Params& p_;
  const uint32_t memory_;  // shared: stages, queries
  float4* const totals_;   // shared, [kTiles, kThreads]: values of the groups that have ended
  float2* const states_;   // shared, [kTileRows]: their max and sum
  int sequence_, kv_head_, first_token_, tokens_;
  int tile_last_, warp_last_, last_[2];  // last positions of the tile, of the warp, of its rows
  Slots slots_;                          // of the chunk to be loaded next
  Sums<kTiles> part_, group_;            // of a split, of a group
};

}  // namespace warproll::attention
