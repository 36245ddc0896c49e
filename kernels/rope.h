// rope: rotary position embedding, half-split (rotate_half) layout, and the write of K and V into
// the paged cache. Source: Su et al. 2021, eq. 34; transformers' apply_rotary_pos_emb.
//   out[i]       = x[i] * cos(a_i) - x[i + D/2] * sin(a_i)
//   out[i + D/2] = x[i + D/2] * cos(a_i) + x[i] * sin(a_i),   a_i = position * theta^(-2i/D)
// The angle is a product in F32, as transformers computes it; its cosine and sine are F64 rounded.
// Thread: pure functions. Errors: std::invalid_argument.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace warproll {

// cos and sin of a step's positions, shared by all layers.
struct RopeAnglesParams {
  const int32_t* positions = nullptr;  // [T] >= 0
  float* cos = nullptr;                // [T, D / 2]
  float* sin = nullptr;                // [T, D / 2]
  int32_t num_tokens = 0;              // T >= 0
  int32_t head_dim = 0;                // D, even
  double theta = 10000.0;
};
void rope_angles_cpu(const RopeAnglesParams& params);

struct RopeKvWriteParams {
  float* q = nullptr;                     // [T, num_heads, D], rotated in place
  const float* k = nullptr;               // [T, num_kv_heads, D]
  const float* v = nullptr;               // [T, num_kv_heads, D]
  const float* cos = nullptr;             // [T, D / 2]
  const float* sin = nullptr;             // [T, D / 2]
  const int32_t* slot_mapping = nullptr;  // [T] slot each token writes, in [0, num_slots)
  float* k_cache = nullptr;               // [num_slots, num_kv_heads, D]
  float* v_cache = nullptr;               // [num_slots, num_kv_heads, D]
  int64_t num_slots = 0;
  int32_t num_tokens = 0;  // T >= 0; 0 is a no-op
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;          // D, even
  Dtype round_to = Dtype::kF32;  // of q and of what the cache holds
};
void rope_kv_write_cpu(const RopeKvWriteParams& params);

}  // namespace warproll
