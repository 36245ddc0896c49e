// moe: the SwiGLU experts of a layer and their weighted sum.
//   y[t] = sum over k, in order, of topk_weights[t, k] * down_e( silu(gate_e x[t]) * (up_e x[t]) ),
//   e = topk_ids[t, k].
// A dense MLP is E = 1, K = 1, weight 1. Tokens are grouped by expert so that a weight row is read
// once for all of them; each token's sums keep their own order, so y[t] has the same bits whatever
// the batch. The SwiGLU intermediate stays F32 in every mode (a GPU keeps it in F32 or with more
// bits than BF16); y is rounded once. Tolerance to F64: 1e-5 * RMS(y).
// Source: Shazeer 2020 (SwiGLU), Shazeer et al. 2017. Thread: pure function; OpenMP over
// (expert, weight rows). Errors: std::invalid_argument.
#pragma once

#include <cstdint>

#include "kernels/weight.h"

namespace warproll {

struct MoeParams {
  const float* x = nullptr;             // [T, H]
  const int32_t* topk_ids = nullptr;    // [T, K], in [0, E)
  const float* topk_weights = nullptr;  // [T, K]
  WeightView gate;                      // E x [I, H]
  WeightView up;                        // E x [I, H]
  WeightView down;                      // E x [H, I]
  float* y = nullptr;                   // [T, H], must not overlap x
  float* scratch = nullptr;             // moe_scratch_floats(params) floats
  int32_t num_tokens = 0;               // T >= 0; 0 is a no-op
  int32_t top_k = 0;                    // K, 1 .. kMaxTopK
  Dtype round_to = Dtype::kF32;
};
// Bounded: T is worked through in tiles of at most kMoeTokenTile tokens.
inline constexpr int32_t kMoeTokenTile = 128;
int64_t moe_scratch_floats(const MoeParams& params);
void moe_cpu(const MoeParams& params);

}  // namespace warproll
