// qkv_finish: what lies between the QKV projection and attention: the norms of q's and k's heads,
// rope, and the write of K and V into the paged cache.
//   q[t, h]           = bf16(rope(norm(qkv[t, h]) * q_norm, positions[t]))
//   k_cache[slot, h]  = bf16(rope(norm(qkv[t, num_heads + h]) * k_norm, positions[t]))
//   v_cache[slot, h]  = qkv[t, num_heads + num_kv_heads + h],                slot = slot_mapping[t]
// Nothing is rounded between norm and rope. Twins: rmsnorm_cpu in F32, then rope_kv_write_cpu
// rounding to BF16 (kernels/rope.h): the same bits, sums included. Two tokens with one slot: either's.
// Waits for the previous kernel before it reads anything but the norms' weights and, with
// indices_are_older, positions, slots and their angles; programmatic dependent launch; no host
// synchronisation, can be captured.
// The next kernel may start before this one has waited. So what that one reads before its own wait
// (weights, positions) must be older than the last kernel that waits before it lets others start, as
// embed and gate_up do, or than a copy.
// Where attention can do all of it on the way, it is not launched: finish_attention (attention.h).
// Thread: any, one stream. Errors: std::invalid_argument, CudaError.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/dtype.h"

namespace warproll {

// Host. cos and sin of every position below max_positions, [max_positions, D / 2] each, with
// rope_angles_cpu's bits: made once a model, then copied to the device.
void fill_rope_tables(int32_t max_positions, int32_t head_dim, double theta, float* cos,
                      float* sin);

struct QkvFinishParams {
  const uint16_t* qkv = nullptr;      // BF16 [T, num_heads + 2 * num_kv_heads, D]: q | k | v
  const std::byte* q_norm = nullptr;  // [D], or null: q is not normed
  const std::byte* k_norm = nullptr;  // [D], or null
  Dtype norm_dtype = Dtype::kBf16;    // kBf16, kF16 or kF32
  float eps = 1e-6f;
  const float* cos = nullptr;          // [max_positions, D / 2]
  const float* sin = nullptr;          // [max_positions, D / 2]
  const int32_t* positions = nullptr;  // [T]; outside [0, max_positions): q zeros, cache unwritten
  const int32_t* slot_mapping = nullptr;  // [T]; outside [0, num_slots): cache unwritten
  uint16_t* q = nullptr;                  // BF16 [T, num_heads, D]
  uint16_t* k_cache = nullptr;            // BF16 [num_slots, num_kv_heads, D]
  uint16_t* v_cache = nullptr;            // BF16 [num_slots, num_kv_heads, D]
  int32_t* num_invalid = nullptr;         // tokens with such a position are added to it; or null
  int64_t num_slots = 0;
  int32_t max_positions = 0;
  int32_t num_tokens = 0;  // T >= 0; 0 is a no-op
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // D, multiple of 16, 16 .. 256
  // positions and slot_mapping were complete before the stream's previous kernel started.
  bool indices_are_older = false;
};  // all pointers to vectors 16-byte aligned
// Throws as qkv_finish does; q may be null where it is not written.
void check_qkv_finish(const QkvFinishParams& params, bool writes_q = true);
void qkv_finish(const QkvFinishParams& params, cudaStream_t stream);

}  // namespace warproll
