// forward(): the whole model on one page. Runs B sequences' new tokens (prefill chunks and decode
// tokens alike, packed) through every layer, writes their K and V into the paged cache, and gives
// logits for the asked rows. A token's bits depend on its own sequence only: never on B, on how
// the prompt was chunked, or on what shares the batch. Source: Qwen3 technical report (2025) and
// transformers' Qwen3MoeForCausalLM.
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

// Paged KV: num_blocks blocks of block_tokens tokens, per layer. Slot s = block * block_tokens + i.
class KvCache {
 public:
  // Throws std::bad_alloc. Bytes: 2 * layers * blocks * block_tokens * kv_heads * head_dim * 4
  // (F32) or * 2 (16-bit).
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

 private:
  int32_t num_layers_, num_blocks_, block_tokens_;
  ActivationDtype dtype_;
  size_t layer_stride_;  // floats of K of one layer
  std::vector<float> storage_;
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
