// The two kernels of warp decode as they were published (Cursor, "warp decode", April 2026): one
// warp owns one output value and walks the routed experts; no shared memory, no lists. Kept as the
// reference point: `moe_path: literal`. Every (token, expert) pair reads its weights again, from
// B = 8 on warp_decode() is faster.
//   moe_gate_up_3d_batched  warp = one neuron of one pair: h = silu(gate x) * (up x)
//   moe_down_3d_batched     warp = one output of one token: walks the K experts, routing weight
//                           folded into one F32 accumulator
// BF16 x, F32 h and sums, weights to F32 in registers, rows as a checkpoint has them.
// Bits depend on the token alone. Tolerance: |y - F64| <= 0.5 ulp_bf16 + 1e-3 * RMS(y).
// Thread: any, one stream. Errors: std::invalid_argument, CudaError.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/weight.h"

namespace warproll {

struct LiteralMoeParams {
  const uint16_t* x = nullptr;          // BF16 [T, H]
  const int32_t* topk_ids = nullptr;    // [T, K]; a pair with an id outside [0, E) adds nothing
  const float* topk_weights = nullptr;  // [T, K]
  WeightView gate, up;                  // E x [I, H], kBf16 or kMxfp8, rows 16-byte aligned
  WeightView down;                      // E x [H, I]
  float* h = nullptr;                   // [T * K, I], workspace
  uint16_t* y = nullptr;                // BF16 [T, H]
  int32_t num_tokens = 0;               // T, 0 .. 65535; 0 is a no-op
  int32_t top_k = 0;                    // K, 1 .. 16
};
void literal_moe(const LiteralMoeParams& params, cudaStream_t stream);

}  // namespace warproll
