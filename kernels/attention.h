// attention: causal grouped-query attention over the paged KV cache.
//   out[t, h] = sum over j <= positions[t] of softmax_j(scale * q[t, h] . K[j, h / G]) V[j, h / G]
// with G = num_heads / num_kv_heads and K[j] at slot block_table[b, j / bt] * bt + j mod bt.
// Source: Vaswani et al. 2017; online softmax of Milakov & Gimelshein 2018.
// The context is walked in chunks of 64 positions counted from 0, in order, so out[t] has the same
// bits in any batch, prefill chunking, block size or block placement. All F32; out is rounded once.
// Tolerance to F64: 1e-5 * max |V|. Thread: pure function; OpenMP over (token, KV head).
// Errors: std::invalid_argument.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace warproll {

inline constexpr int32_t kMaxHeadDim = 512;

struct AttentionParams {
  const float* q = nullptr;               // [T, num_heads, D]
  const float* k_cache = nullptr;         // [num_blocks * block_tokens, num_kv_heads, D]
  const float* v_cache = nullptr;         // [num_blocks * block_tokens, num_kv_heads, D]
  const int32_t* positions = nullptr;     // [T] last position each token sees: its own
  const int32_t* cu_seqlens_q = nullptr;  // [B + 1] exclusive prefix sums; the last is T
  const int32_t* block_table = nullptr;   // [B, P], entries in use in [0, num_blocks)
  float* out = nullptr;                   // [T, num_heads, D], must not overlap q
  int32_t num_sequences = 0;              // B >= 0
  int32_t num_tokens = 0;                 // T >= 0; 0 is a no-op
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;      // D, 1 .. kMaxHeadDim
  int32_t num_blocks = 0;
  int32_t block_tokens = 0;         // bt >= 1
  int32_t blocks_per_sequence = 0;  // P; every position < P * bt
  float scale = 1.0f;               // 1 / sqrt(D)
  Dtype round_to = Dtype::kF32;
};
void attention_cpu(const AttentionParams& params);

}  // namespace warproll
