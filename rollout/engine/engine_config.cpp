#include "rollout/engine/engine_config.h"

#include <string>

namespace warproll {

int32_t EngineConfig::context_tokens(const ModelConfig& model) const {
  return max_context_tokens > 0 ? max_context_tokens : model.max_position_embeddings;
}

Status validate(const EngineConfig& config, const ModelConfig& model) {
  const auto at_least = [](const char* key, int32_t value, int32_t wanted) {
    if (value >= wanted) return ok_status();
    return invalid_argument("engine: " + std::string(key) + " is " + std::to_string(value) +
                            ", wanted at least " + std::to_string(wanted));
  };
  WARPROLL_TRY(at_least("max_running_sequences", config.max_running_sequences, 1));
  // So that every running sequence can decode in every step.
  WARPROLL_TRY(at_least("max_batch_tokens", config.max_batch_tokens, config.max_running_sequences));
  WARPROLL_TRY(at_least("prefill_chunk_tokens", config.prefill_chunk_tokens, 1));
  WARPROLL_TRY(at_least("max_queued_requests", config.max_queued_requests, 1));
  WARPROLL_TRY(at_least("max_context_tokens", config.max_context_tokens, 0));
  WARPROLL_TRY(at_least("block_tokens", config.block_tokens, 1));
  WARPROLL_TRY(at_least("num_blocks", config.num_blocks, 1));
  WARPROLL_TRY(at_least("max_context_tokens (or the model's)", config.context_tokens(model), 2));
  if (config.max_context_tokens > model.max_position_embeddings) {
    return invalid_argument("engine: max_context_tokens is " +
                            std::to_string(config.max_context_tokens) + ", wanted at most the " +
                            std::to_string(model.max_position_embeddings) +
                            " positions of the model");
  }
  return ok_status();
}

}  // namespace warproll
