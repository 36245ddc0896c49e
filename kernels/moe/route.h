// route: the router of a MoE layer on the device, and everything the experts' kernels want from it.
//   logits[t, e] = W[e] . x[t]                       F32
//   topk_ids, topk_weights as of kernels/router.h: softmax over E in F32, the K largest, ties to the
//   lowest expert, optionally renormalised to sum 1
//   lists: the pairs of every expert                 (expert_lists.h)
//   x_tile: x as F16 in tile order                   (warp_decode.h), unless add_rmsnorm wrote it
// Routing replay: with given_ids no expert is chosen; their weights are given_weights or, where that
// is null, this router's probabilities.
// One kernel for up to 128 tokens, BF16 weights and E <= 128, else two; programmatic dependent launch,
// no host synchronisation. The one kernel reads W before the previous kernel has ended: W must have
// been complete before anything that may still run (stream_linear.h). A token's logits, ids and
// weights have the same bits whatever else is in the batch.
// Source: Shazeer et al. 2017; Qwen3MoeTopKRouter of transformers. Tolerance: logits to F64 1e-5 *
// |W| |x|, weights 1e-6 of router_cpu's on the same logits.
// Thread: any, one stream. Errors: std::invalid_argument, CudaError.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/dtype.h"
#include "kernels/moe/warp_decode.h"

namespace warproll {

struct RouteParams {
  const uint16_t* x = nullptr;   // BF16 [T, H]
  const void* weight = nullptr;  // [E, H], BF16 or F32
  Dtype weight_dtype = Dtype::kBf16;
  const int32_t* given_ids = nullptr;    // [T, K], or null: route freely
  const float* given_weights = nullptr;  // [T, K], or null; only with given_ids
  float* logits = nullptr;               // [T, E]
  int32_t* topk_ids = nullptr;           // [T, K]
  float* topk_weights = nullptr;         // [T, K]
  ExpertLists lists;
  TileActivations x_tile;   // [T, H]; values null: not written
  int32_t num_tokens = 0;   // T, 0 .. 8192; 0 is a no-op
  int32_t hidden_size = 0;  // H, multiple of 32
  int32_t num_experts = 0;  // E, 1 .. 512
  int32_t top_k = 0;        // K, 1 .. min(E, 16)
  bool renormalise = true;
};
void route(const RouteParams& params, cudaStream_t stream);

}  // namespace warproll
