// router: softmax over E in F32, the K largest probabilities, optionally renormalised to sum 1.
// Ties go to the lowest expert; topk_ids fall in probability. Never rounded to 16 bits: a GPU
// keeps routing in F32 too. Source: Shazeer et al. 2017; Qwen3MoeTopKRouter of transformers.
// Thread: pure function. Errors: std::invalid_argument.
#pragma once

#include <cstdint>

namespace warproll {

struct RouterParams {
  const float* logits = nullptr;  // [T, E]
  // Routing replay: [T, K] experts to use instead of the K best, each in [0, E), no expert twice
  // in a row; null = route freely. Their weights are this router's probabilities.
  const int32_t* given_ids = nullptr;
  int32_t* topk_ids = nullptr;    // [T, K], may be given_ids
  float* topk_weights = nullptr;  // [T, K]
  int32_t num_tokens = 0;         // T >= 0; 0 is a no-op
  int32_t num_experts = 0;        // E, 1 .. kMaxExperts
  int32_t top_k = 0;              // K, 1 .. min(E, kMaxTopK)
  bool renormalise = true;        // norm_topk_prob
};
inline constexpr int32_t kMaxExperts = 512;
inline constexpr int32_t kMaxTopK = 16;
void router_cpu(const RouterParams& params);

}  // namespace warproll
