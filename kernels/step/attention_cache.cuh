// What the kernels of attention get, and how a CTA brings 64 positions of a KV head's paged K and V
// to shared memory. Internal to kernels/step/attention*.
#pragma once

#include "kernels/step/attention_math.cuh"

namespace warproll::attention {

// Sums of decode CTAs that did not have all of a (sequence, KV head): numbered by unit. A unit is a
// split, or a group where there are more than kMaxSplitUnits splits; in order of sequence, KV head,
// position.
struct Partials {
  float2* states = nullptr;  // [units, G] max, sum
  float* values = nullptr;   // [units, G, D]
  // 0 between launches. [2, decode_ctas]: parts that have arrived of the group, and groups of the pair,
  // that CTA i began and others go on with.
  unsigned* tickets = nullptr;
};
inline constexpr int kMaxSplitUnits = 8192;
inline constexpr int kMaxDecodeCtas = 1024;
static_assert(kAttentionTicketBytes == 2 * kMaxDecodeCtas * sizeof(unsigned));

struct Params {
  PagedAttentionParams op;
  Partials partials;
  float scale_log2 = 0;  // scale * log2(e)
  int group = 0;         // G
  int tile_tokens = 0;   // tokens of a prefill CTA: kTileRows / G
  int decode_ctas = 0;
  bool one_token_each = false;  // sequence b is token b
};

__device__ __forceinline__ int query_tokens(const PagedAttentionParams& p, int sequence) {
  return p.cu_seqlens_q[sequence + 1] - p.cu_seqlens_q[sequence];
}

// The item that holds number `target` when item i has weight(i) >= 0 numbers; index is `count` where
// there is none. Whole warps.
struct Found {
  int index, before;  // `before`: numbers of the items before it
};
template <class Weight>
__device__ __forceinline__ Found find_item(int target, int count, const Weight& weight) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int before = 0;
  for (int base = 0; base < count; base += 32) {
    const int own = base + lane < count ? weight(base + lane) : 0;
    int sum = own;
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(~0u, sum, distance);
      if (lane >= distance) sum += other;
    }
    const unsigned holders = __ballot_sync(~0u, target < before + sum);
    if (holders != 0) {
      const int first = __ffs(static_cast<int>(holders)) - 1;
      return {base + first, before + __shfl_sync(~0u, sum - own, first)};
    }
    before += __shfl_sync(~0u, sum, 31);
  }
  return {count, before};
}

// Where positions first + lane and first + 32 + lane lie; -1 behind `last`.
struct Slots {
  int low, high;
};
__device__ __forceinline__ Slots find_slots(const PagedAttentionParams& p, int sequence, int first,
                                            int last) {
  const int32_t* blocks = p.block_table + static_cast<int64_t>(sequence) * p.blocks_per_sequence;
  const auto slot = [&](int position) {
    if (position > last) return -1;
    const int block = position / p.block_tokens;
    return blocks[block] * p.block_tokens + (position - block * p.block_tokens);
  };
  const int position = first + static_cast<int>(threadIdx.x) % 32;
  return {slot(position), slot(position + 32)};
}

// K, then V, of a chunk in shared memory.
template <int kD>
struct Stage {
  static constexpr int kRowsBytes = kChunk * kD * 2;
  static constexpr int kBytes = 2 * kRowsBytes;
  static constexpr int kPieces = kD / 8;                // of a row
  static constexpr int kPassRows = kThreads / kPieces;  // that the CTA copies at once
  static_assert(kPassRows % 8 == 0 && 32 % kPassRows == 0);

  // Starts the copy of a KV head's rows at `slots`, which every warp has alike. Rows without a slot,
  // and columns behind D, become zero.
  static __device__ __forceinline__ void load(const PagedAttentionParams& p, uint32_t stage,
                                              Slots slots, int kv_head) {
    const int piece = static_cast<int>(threadIdx.x) % kPieces;
    const int row = static_cast<int>(threadIdx.x) / kPieces;
    const int64_t stride = static_cast<int64_t>(p.num_kv_heads) * p.head_dim;
    const bool in_row = piece * 8 < p.head_dim;
    const int64_t column = static_cast<int64_t>(kv_head) * p.head_dim + (in_row ? piece * 8 : 0);
    const uint32_t to = piece_address<kD>(stage, row, piece);
#pragma unroll
    for (int i = 0; i < kChunk / kPassRows; ++i) {
      const int at = (row + i * kPassRows) % 32;
      const int slot = __shfl_sync(~0u, i * kPassRows < 32 ? slots.low : slots.high, at);
      const int64_t from = max(slot, 0) * stride + column;
      const uint32_t here = to + i * kPassRows * kD * 2;
      ptx::cp_async_16(here, p.k_cache + from, slot >= 0 && in_row);
      ptx::cp_async_16(here + kRowsBytes, p.v_cache + from, slot >= 0 && in_row);
    }
  }
};

// out[d], out[d + 1] of a query head, from a lane's sums. `row` points to the head's out.
template <int kTiles>
__device__ __forceinline__ void write_row(const Sums<kTiles>& sums, int half, uint16_t* row,
                                          int first_dim, int head_dim) {
  const float reciprocal = __frcp_rn(sums.sum[half]);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const int d = first_dim + 8 * n;
    if (d >= head_dim) break;
    *reinterpret_cast<__nv_bfloat162*>(row + d + threadIdx.x % 4 * 2) = __floats2bfloat162_rn(
        divide(sums.acc[n][2 * half], reciprocal), divide(sums.acc[n][2 * half + 1], reciprocal));
  }
}

}  // namespace warproll::attention
