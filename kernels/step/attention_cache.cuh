// What the kernels of attention get, and how a CTA brings 64 positions of a KV head's paged K or V
// to shared memory. Internal to kernels/step/attention*.
#pragma once

#include <cstddef>

#include "kernels/step/attention_math.cuh"

namespace warproll::attention {

// Sums of decode CTAs that did not have all of a (sequence, KV head): numbered by unit. A unit is a
// split, or a group where there are more than kMaxSplitUnits splits; in order of sequence, KV head,
// position.
struct Partials {
  float2* states = nullptr;  // [units, G] max, sum
  float* values = nullptr;   // [units, G, D]
  // 0 between launches. [2, decode_ctas]: parts that have arrived of the group, and groups of the pair,
  // that CTA i began and others go on with. Or, with a CTA a split, [pairs, 8]: groups of heads r, r + 8.
  unsigned* tickets = nullptr;
};
inline constexpr int kMaxSplitUnits = 8192;
inline constexpr int kMaxDecodeCtas = 1024;
static_assert(kAttentionTicketBytes == 2 * kMaxDecodeCtas * sizeof(unsigned));

// n / d for n < 2^31 in three instructions. Source: Granlund, Montgomery 1994, figure 4.1.
struct Divider {
  uint32_t factor = 0;
  int shift = 0;
  Divider() = default;
  explicit Divider(int d) {
    while ((int64_t{1} << shift) < d) ++shift;
    factor = static_cast<uint32_t>((((int64_t{1} << shift) - d) << 32) / d + 1);
  }
  __device__ __forceinline__ int quotient(int n) const {
    const auto u = static_cast<uint32_t>(n);
    return static_cast<int>((__umulhi(factor, u) + u) >> shift);
  }
};

struct Params {
  PagedAttentionParams op;
  Divider by_block_tokens;
  Partials partials;
  float scale_log2 = 0;  // scale * log2(e)
  int group = 0;         // G
  int tile_tokens = 0;   // tokens of a prefill CTA: kTileRows / G
  int decode_ctas = 0;
  int pair_groups = 0;          // groups that a (sequence, KV head) can have
  bool one_token_each = false;  // sequence b is token b
};

// Where a head of a KV head's group begins in q and out.
__device__ __forceinline__ int64_t head_row(const Params& p, int token, int kv_head,
                                            int head_in_group) {
  const int64_t head =
      static_cast<int64_t>(token) * p.op.num_heads + kv_head * p.group + head_in_group;
  return head * p.op.head_dim;
}

// A token's query heads of a KV head, as fragments; without kHigh half 1 is zeros.
template <int kD, bool kHigh>
__device__ __forceinline__ void load_queries(const Params& p, int token, int kv_head,
                                             uint32_t (&q)[kD / 16][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int h = 0; h < (kHigh ? 2 : 1); ++h) {
    const int row = lane / 4 + 8 * h;
    const uint16_t* from = p.op.q + head_row(p, token, kv_head, row) + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kD / 8; ++i) {
      const bool valid = row < p.group && i * 8 < p.op.head_dim;
      q[i / 2][i % 2 * 2 + h] = valid ? *reinterpret_cast<const uint32_t*>(from + i * 8) : 0u;
      if (!kHigh) q[i / 2][i % 2 * 2 + 1] = zero_register();
    }
  }
}

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

// Where positions first + lane and first + 32 + lane lie.
struct Slots {
  int low, high;
};
inline constexpr int kNoSlot = -1;  // rows of zeros
// kNoSlot behind `last`.
__device__ __forceinline__ Slots find_slots(const Params& p, int sequence, int first, int last) {
  const int32_t* blocks =
      p.op.block_table + static_cast<int64_t>(sequence) * p.op.blocks_per_sequence;
  const auto slot = [&](int position) {
    if (position > last) return kNoSlot;
    const int block = p.by_block_tokens.quotient(position);
    return (blocks[block] - block) * p.op.block_tokens + position;
  };
  const int position = first + static_cast<int>(threadIdx.x) % 32;
  return {slot(position), slot(position + 32)};
}

// A KV head's rows of a chunk, K or V, in shared memory: what a thread copies of them. Few instructions:
// with many positions they are as dear as the bytes.
template <int kD>
class Rows {
 public:
  static constexpr int kBytes = kChunk * kD * 2;
  static constexpr int kPieces = kD / 8;                // of a row
  static constexpr int kPassRows = kThreads / kPieces;  // that the CTA copies at once
  static_assert(kPassRows % 8 == 0 && 32 % kPassRows == 0);

  // Columns behind D become zero.
  __device__ __forceinline__ Rows(const Params& p, const uint16_t* cache, int kv_head)
      : row_bytes_(static_cast<uint32_t>(p.op.num_kv_heads * p.op.head_dim * 2)),
        in_row_(piece() * 8 < p.op.head_dim) {
    from_ = reinterpret_cast<const std::byte*>(cache + kv_head * p.op.head_dim +
                                               (in_row_ ? piece() * 8 : 0));
  }

  // Starts the copy of the rows at `slots`, which every warp has alike.
  __device__ __forceinline__ void load(uint32_t to, Slots slots) const {
    for_rows(slots, [&](uint32_t at, int, int slot) { copy(to + at, slot); });
  }
  // Without row `later`.
  __device__ __forceinline__ void load_but(uint32_t to, Slots slots, int later) const {
    for_rows(slots, [&](uint32_t at, int row, int slot) {
      if (row != later) copy(to + at, slot);
    });
  }
  // This thread's piece of one row.
  __device__ __forceinline__ void load_row(uint32_t to, int row, int slot) const {
    copy(piece_address<kD>(to, row, piece()), slot);
  }

 private:
  static __device__ __forceinline__ int piece() { return static_cast<int>(threadIdx.x) % kPieces; }
  static __device__ __forceinline__ int row() { return static_cast<int>(threadIdx.x) / kPieces; }
  template <class Use>
  static __device__ __forceinline__ void for_rows(Slots slots, const Use& use) {
    const uint32_t first = piece_address<kD>(0, row(), piece());
#pragma unroll
    for (int i = 0; i < kChunk / kPassRows; ++i) {
      const int at = (row() + i * kPassRows) % 32;
      const int slot = __shfl_sync(~0u, i * kPassRows < 32 ? slots.low : slots.high, at);
      use(first + static_cast<uint32_t>(i * kPassRows * kD * 2), row() + i * kPassRows, slot);
    }
  }
  __device__ __forceinline__ void copy(uint32_t to, int slot) const {
    const auto index = static_cast<uint32_t>(max(slot, 0));
    ptx::cp_async_16(to, from_ + static_cast<uint64_t>(index) * row_bytes_, slot >= 0 && in_row_);
  }

  const std::byte* from_;
  uint32_t row_bytes_;
  bool in_row_;
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
