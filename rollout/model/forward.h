// forward(): the whole model on one page. Runs B sequences' new tokens (prefill chunks and decode
// tokens alike, packed) through every layer, writes their K and V into the paged cache, and gives
// logits for the asked rows. A token's bits depend on its own sequence only: never on B, on how
// the prompt was chunked, or on what shares the batch. Source: Qwen3 technical report (2025) and
// transformers' Qwen3MoeForCausalLM.
// 16-bit activations are rounded where a GPU stores them: embedding, norms, q/k/v projections, q
// and k after their norm and rope (fused, one rounding), the cached K and V, attention output,
// o projection, MoE output, and the residual stream after each addition. Everything between stays
// F32: weights (dequantised exactly), all sums, softmax, router logits and weights, the SwiGLU
// intermediate, and the logits.
// Thread: one caller at a time per KvCache; uses OpenMP inside.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "protocol/status.h"
#include "rollout/model/weights.h"

namespace warproll {

enum class ActivationDtype : uint8_t { kF32, kBf16, kF16 };  // 16-bit: rounds where a GPU would
std::string_view to_string(ActivationDtype dtype);           // "f32" ...

// The buffers of a step, grown once and reused: no allocation in the step loop.
struct ForwardWorkspace {
  std::vector<float> hidden, normed, projected;  // [T, H]
  std::vector<float> q, attention;               // [T, num_heads, D]
  std::vector<float> k, v;                       // [T, num_kv_heads, D]
  std::vector<float> cos, sin;                   // [T, D / 2]
  std::vector<float> router_logits;              // [T, E]
  std::vector<float> topk_weights;               // [T, K]
  std::vector<int32_t> topk_ids;                 // [T, K]
  std::vector<float> moe_scratch;                // moe_scratch_floats()
  std::vector<float> logits_hidden;              // [N, H]
};

// Paged KV: num_blocks blocks of block_tokens tokens, per layer. Slot s = block * block_tokens + i.
class KvCache {
 public:
  // Throws std::bad_alloc, and std::invalid_argument on a size below 1. Values are floats in every
  // dtype (rounded to it in the 16-bit ones): bytes = 2 * layers * blocks * block_tokens * kv_heads
  // * head_dim * 4.
  KvCache(const ModelConfig& config, int32_t num_blocks, int32_t block_tokens,
          ActivationDtype dtype);
  [[nodiscard]] int32_t num_blocks() const { return num_blocks_; }
  [[nodiscard]] int32_t block_tokens() const { return block_tokens_; }
  [[nodiscard]] ActivationDtype dtype() const { return dtype_; }
  [[nodiscard]] size_t bytes() const { return storage_.size() * sizeof(float); }
  // K (or V) of one layer: [num_blocks * block_tokens, num_kv_heads, head_dim].
  [[nodiscard]] float* k(int32_t layer);
  [[nodiscard]] float* v(int32_t layer);
  void copy_block(int32_t from, int32_t to);  // all layers; for copy on write
  [[nodiscard]] ForwardWorkspace& workspace() { return workspace_; }  // of the step that runs

 private:
  int32_t num_layers_, num_blocks_, block_tokens_;
  ActivationDtype dtype_;
  size_t layer_stride_;  // floats of K of one layer
  std::vector<float> storage_;
  ForwardWorkspace workspace_;
};

struct ForwardBatch {
  std::span<const int32_t> token_ids;     // [T] new tokens, packed by sequence
  std::span<const int32_t> positions;     // [T] absolute
  std::span<const int32_t> slot_mapping;  // [T] KV slot each token writes
  std::span<const int32_t> cu_seqlens_q;  // [B + 1] exclusive prefix sums of new tokens
  std::span<const int32_t> context_lens;  // [B] tokens in the cache after this step
  std::span<const int32_t> block_table;   // [B, P]
  int32_t blocks_per_sequence = 0;        // P
  std::span<const int32_t> logits_rows;   // [N] indices into the T tokens that need logits
  // Routing replay: expert ids to use instead of the router's, [T, L, K]; empty = route freely.
  std::span<const uint16_t> given_routes;
};
struct ForwardOutput {
  std::vector<float> logits;         // [N, V]
  std::vector<uint16_t> routes;      // [T, L, K], L = MoE layers; empty unless want_routes
  std::vector<float> router_logits;  // [T, L, E] before softmax; empty unless want_router_logits
  bool want_routes = false;
  bool want_router_logits = false;
};

// Shapes and id ranges are the caller's promise and are checked: throws std::invalid_argument with
// the values.
void forward(const ForwardBatch& batch, const ModelConfig& config, const ModelWeights& weights,
             ActivationDtype activations, KvCache& kv, ForwardOutput& out);

}  // namespace warproll
