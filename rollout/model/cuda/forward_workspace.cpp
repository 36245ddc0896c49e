#include "rollout/model/cuda/forward_workspace.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/moe/expert_centric.h"
#include "kernels/step/attention.h"
#include "kernels/step/linear.h"
#include "kernels/step/qkv_finish.h"

namespace warproll {

DeviceForward::Workspace::Workspace(const ModelConfig& config,
                                    const DeviceForwardOptions& options) {
  place(config, options, nullptr);
  memory_ = DeviceBuffer<std::byte>(bytes);
  place(config, options, memory_.data());
  WARPROLL_CUDA_CHECK(cudaMemset(memory_.data(), 0, bytes));  // lists and dense ids start at zero
  const auto tokens = static_cast<size_t>(options.largest.num_tokens);
  const std::vector<float> ones(tokens, 1.0f);
  WARPROLL_CUDA_CHECK(
      cudaMemcpy(dense_weights, ones.data(), tokens * sizeof(float), cudaMemcpyHostToDevice));
  const auto half = static_cast<size_t>(config.max_position_embeddings) *
                    static_cast<size_t>(config.head_dim / 2);
  std::vector<float> host_cos(half), host_sin(half);
  fill_rope_tables(config.max_position_embeddings, config.head_dim, config.rope_theta,
                   host_cos.data(), host_sin.data());
  const size_t table_bytes = half * sizeof(float);
  WARPROLL_CUDA_CHECK(cudaMemcpy(cos, host_cos.data(), table_bytes, cudaMemcpyHostToDevice));
  WARPROLL_CUDA_CHECK(cudaMemcpy(sin, host_sin.data(), table_bytes, cudaMemcpyHostToDevice));
}

size_t DeviceForward::Workspace::bytes_of(const ModelConfig& config,
                                          const DeviceForwardOptions& options) {
  Workspace sizes;
  sizes.place(config, options, nullptr);
  return sizes.bytes;
}

// With base null only `bytes` means anything.
void DeviceForward::Workspace::place(const ModelConfig& config, const DeviceForwardOptions& options,
                                     std::byte* base) {
  const StepShape& largest = options.largest;
  const int64_t tokens = largest.num_tokens, hidden_size = config.hidden_size;
  const int64_t top_k = std::max(config.num_experts_per_tok, 1);
  const int64_t layers = config.num_moe_layers();
  const int64_t q_size = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_size = int64_t{config.num_kv_heads} * config.head_dim;
  bytes = 0;
  const auto take_bytes = [&](size_t size) {
    return base + std::exchange(bytes, bytes + (size + 255) / 256 * 256);
  };
  const auto take = [&]<typename T>(T*& place, int64_t count) {
    place = reinterpret_cast<T*>(take_bytes(static_cast<size_t>(count) * sizeof(T)));
  };
  take(hidden, tokens * hidden_size);
  take(hidden_next, tokens * hidden_size);
  take(normed, tokens * hidden_size);
  take(normed_tile.values, tokens * hidden_size);
  take(normed_tile.scales, tokens);
  take(qkv, tokens * (q_size + 2 * kv_size));
  take(q, tokens * q_size);
  take(attention, tokens * q_size);
  take(projected, tokens * hidden_size);
  PagedAttentionParams widest;
  widest.num_sequences = largest.num_sequences;
  widest.num_tokens = largest.num_tokens;
  widest.num_heads = config.num_heads;
  widest.num_kv_heads = config.num_kv_heads;
  widest.head_dim = config.head_dim;
  widest.blocks_per_sequence = largest.blocks_per_sequence;
  widest.block_tokens = options.block_tokens;
  attention_workspace = take_bytes(paged_attention_workspace_bytes(widest));
  take(router_logits,
       tokens * config.num_experts * (options.capture_router_logits ? layers : int64_t{1}));
  take(topk_ids, layers * tokens * top_k);
  take(topk_weights, tokens * top_k);
  take(dense_ids, tokens);
  take(dense_weights, tokens);
  const auto pairs = static_cast<int32_t>(tokens * top_k);
  lists = expert_lists_at(take_bytes(expert_lists_bytes(pairs, std::max(config.num_experts, 1))),
                          pairs, std::max(config.num_experts, 1));
  const auto rows = static_cast<int32_t>(tokens);
  dense_lists = expert_lists_at(take_bytes(expert_lists_bytes(rows, 1)), rows, 1);
  const int64_t decode_tokens = std::min<int64_t>(tokens, kMaxWarpDecodeTokens);
  take(expert_h,
       2 * decode_tokens *
           std::max(top_k * config.moe_intermediate_size, int64_t{config.intermediate_size}));
  // The literal path keeps its h here: [T * K, I].
  take(expert_partials,
       decode_tokens * top_k * std::max<int64_t>(hidden_size, config.moe_intermediate_size));
  if (!options.batch_invariant) {
    ExpertCentricShape shape{largest.num_tokens, config.num_experts, config.num_experts_per_tok,
                             config.hidden_size, config.moe_intermediate_size};
    expert_centric_bytes = layers > 0 ? expert_centric_workspace_bytes(shape) : 0;
    if (layers < config.num_layers) {
      shape = {largest.num_tokens, 1, 1, config.hidden_size, config.intermediate_size};
      expert_centric_bytes = std::max(expert_centric_bytes, expert_centric_workspace_bytes(shape));
    }
    expert_centric = take_bytes(expert_centric_bytes);
  }
  linear_bytes =
      step_linear_workspace_bytes(std::max(largest.num_tokens, largest.num_logits),
                                  std::max(config.hidden_size, config.num_heads * config.head_dim));
  linear = take_bytes(linear_bytes);
  take(logits_hidden, int64_t{largest.num_logits} * hidden_size);
  take(logits, int64_t{largest.num_logits} * config.vocab_size);
  take(sampled, largest.num_logits);
  const int64_t half = int64_t{config.max_position_embeddings} * (config.head_dim / 2);
  take(cos, half);
  take(sin, half);
}

}  // namespace warproll
