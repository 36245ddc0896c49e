// paged_attention: causal grouped-query attention over the paged KV cache on the GPU, decode tokens
// and prefill chunks alike, in one kernel.
//   out[t, h] = sum over j <= positions[t] of softmax_j(scale * q[t, h] . K[j, h / G]) V[j, h / G]
// with G = num_heads / num_kv_heads and K[j] at slot block_table[b, j / bt] * bt + j mod bt, as
// kernels/attention.h. Source: Vaswani et al. 2017; split KV of Dao et al. 2023 (flash-decoding).
//
// The sum has one order, whatever runs it. Positions are counted from 0: chunks of 64 (online
// softmax), splits of two chunks, groups of eight splits. A split starts anew; the splits of a group
// are folded in order, then the groups in order. A query head is a row of mma.m16n8k16, and a row
// depends on itself alone. So out[t] has the same bits alone, in any batch, in any chunking of the
// prompt, with any block size, placement or prefix sharing, on any number of SMs: those decide only
// which CTA does what. (Provided K and V are finite up to the last position a sequence has in the
// step: 0 * NaN of a later token would reach an earlier one of the same tile. What lies behind it,
// in the last block or in blocks not in use, is never read.)
//
// Numbers: BF16 products, exact in the tensor cores' F32 sums; softmax and everything else F32;
// probabilities enter the second product as hi + lo BF16 (16 bits); out is rounded once.
// Tolerance: |out - F64| <= 0.5 ulp_bf16(F64) + kAttentionTolerance * max |V| of the context. The
// terms: 2^-17 of hi + lo, 2^-22 of exp2, the tensor cores' truncated sums, and |score| * 2^-23.
//
// Sequences of one new token: a fixed grid shares their splits evenly; or, where they are few, a CTA has
// a split, and eight or sixteen make a cluster. A KV head's K and V are read once for its G query heads. Others: a
// CTA takes 64 / G tokens of a sequence through the context.
// No host synchronisation, no allocation, no waiting between CTAs but within a cluster; shapes alone
// decide grids, so a CUDA graph may replay it on other positions, tables and lengths. No atomics but
// counts of CTAs.
// Thread: any, one stream. Errors: std::invalid_argument (shapes), CudaError. Positions, tables and
// cu_seqlens_q are the caller's promise: they are on the device and not checked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/step/qkv_finish.h"

namespace warproll {

inline constexpr int32_t kAttentionSplit = 128;
inline constexpr float kAttentionTolerance = 5e-5f;
inline constexpr int32_t kMaxAttentionHeadDim = 128;
inline constexpr int32_t kMaxAttentionGroup = 16;
inline constexpr int32_t kMaxAttentionSequences = 2048;
inline constexpr size_t kAttentionTicketBytes = 8192;

struct PagedAttentionParams {
  const uint16_t* q = nullptr;            // BF16 [T, num_heads, D]
  const uint16_t* k_cache = nullptr;      // BF16 [num_blocks * block_tokens, num_kv_heads, D]
  const uint16_t* v_cache = nullptr;      // BF16 [num_blocks * block_tokens, num_kv_heads, D]
  const int32_t* positions = nullptr;     // [T] last position each token sees: its own
  const int32_t* cu_seqlens_q = nullptr;  // [B + 1] exclusive prefix sums; the last is T
  const int32_t* block_table = nullptr;   // [B, P], entries in use in [0, num_blocks)
  uint16_t* out = nullptr;                // BF16 [T, num_heads, D], must not overlap q
  // paged_attention_workspace_bytes(). The first kAttentionTicketBytes are zero before their first use
  // and after every launch; the rest needs no initial value.
  void* workspace = nullptr;
  int32_t num_sequences = 0;  // B, 0 .. kMaxAttentionSequences
  int32_t num_tokens = 0;     // T >= 0; 0 is a no-op
  // No sequence has more new tokens than this; 0: unknown. 1 leaves prefill out of the launch.
  int32_t max_query_tokens = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads; G <= kMaxAttentionGroup
  int32_t head_dim = 0;      // D, multiple of 8, 8 .. kMaxAttentionHeadDim; 64 and 128 are fast
  int32_t num_blocks = 0;    // num_blocks * block_tokens < 2^31
  int32_t block_tokens = 0;  // bt >= 1
  int32_t blocks_per_sequence = 0;  // P; every position < P * bt
  float scale = 1.0f;               // > 0; 1 / sqrt(D)
  // positions, cu_seqlens_q and block_table were complete before the stream's previous kernel
  // started, so they may be read before it ends. (qkv_finish.h says when that is so.)
  bool indices_are_older = false;
  // Only with indices_are_older: so were K and V of all positions before the new one, of the sequences
  // of one new token. (A step writes their new token's, and nothing that they share with others.)
  bool past_is_older = false;
};
void paged_attention(const PagedAttentionParams& params, cudaStream_t stream);
// qkv_finish, then paged_attention, in one kernel: the caches and out with their bits; q is neither written
// nor read. For what attention_can_finish() is true of: one new token a sequence (max_query_tokens 1), D a
// multiple of 16, and so few sequences that their splits' clusters run side by side; of a position that is
// invalid for qkv_finish, out is written if it is not negative. Both params name the same positions, caches
// and shapes. A slot that a token of the launch writes is in no other sequence's context.
[[nodiscard]] bool attention_can_finish(const PagedAttentionParams& params);
// For one and two sequences it is (docs/benchmarks/step.md).
[[nodiscard]] bool finish_attention_is_faster(const PagedAttentionParams& params);
void finish_attention(const QkvFinishParams& finish, const PagedAttentionParams& params,
                      cudaStream_t stream);
// Of B, heads, D, P and bt. Grows with B * P; 0 where P * bt <= kAttentionSplit.
[[nodiscard]] size_t paged_attention_workspace_bytes(const PagedAttentionParams& params);

}  // namespace warproll
