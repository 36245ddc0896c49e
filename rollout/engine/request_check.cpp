#include "rollout/engine/request_check.h"

#include <algorithm>
#include <string>
#include <utility>

namespace warproll {
namespace {

Status check_prompt(const SampleRequest& request, const EngineConfig& config,
                    const ModelConfig& model) {
  if (request.prompt_ids == nullptr || request.prompt_ids->empty())
    return invalid_argument("the prompt has 0 tokens, wanted at least 1");
  const int64_t prompt_len = static_cast<int64_t>(request.prompt_ids->size());
  const int64_t context = config.context_tokens(model);
  if (prompt_len >= context) {
    return invalid_argument("the prompt has " + std::to_string(prompt_len) +
                            " tokens, wanted fewer than the context of " + std::to_string(context));
  }
  for (size_t i = 0; i < request.prompt_ids->size(); ++i) {
    const int32_t id = (*request.prompt_ids)[i];
    if (id >= 0 && id < model.vocab_size) continue;
    return invalid_argument("prompt token " + std::to_string(i) + " is " + std::to_string(id) +
                            ", wanted [0, " + std::to_string(model.vocab_size) + ")");
  }
  return ok_status();
}

// The last token is never forwarded and so needs no KV.
Status check_blocks(const SampleRequest& request, const EngineConfig& config,
                    const ModelConfig& model) {
  const auto prompt_len = static_cast<int64_t>(request.prompt_ids->size());
  const int64_t longest =
      std::min<int64_t>(prompt_len + request.sampling.max_tokens, config.context_tokens(model));
  const int64_t needed = (longest - 1 + config.block_tokens - 1) / config.block_tokens;
  if (needed <= config.num_blocks) return ok_status();
  return resource_exhausted(
      "up to " + std::to_string(longest) + " tokens (prompt " + std::to_string(prompt_len) +
      ", max_tokens " + std::to_string(request.sampling.max_tokens) + ") need " +
      std::to_string(needed) + " KV blocks of " + std::to_string(config.block_tokens) +
      " tokens, the engine has " + std::to_string(config.num_blocks));
}

}  // namespace

Status check_request(const SampleRequest& request, const EngineConfig& config,
                     const ModelConfig& model, bool has_tokenizer) {
  const std::string name = "request " + std::to_string(request.request_id);
  WARPROLL_TRY(check_prompt(request, config, model).with_context(name));
  WARPROLL_TRY(validate(request.sampling).with_context(name));
  if (request.sample_index < 0) {
    return invalid_argument(name + ": sample_index is " + std::to_string(request.sample_index) +
                            ", wanted >= 0");
  }
  if (!has_tokenizer && !request.sampling.stop_strings.empty()) {
    return invalid_argument(name + ": " + std::to_string(request.sampling.stop_strings.size()) +
                            " stop strings, wanted none: the engine has no tokenizer");
  }
  return check_blocks(request, config, model).with_context(name);
}

Status check_same_shape(const ModelConfig& got, const ModelConfig& wanted) {
  const std::pair<const char*, int32_t ModelConfig::*> sizes[] = {
      {"hidden_size", &ModelConfig::hidden_size},
      {"vocab_size", &ModelConfig::vocab_size},
      {"num_layers", &ModelConfig::num_layers},
      {"num_heads", &ModelConfig::num_heads},
      {"num_kv_heads", &ModelConfig::num_kv_heads},
      {"head_dim", &ModelConfig::head_dim},
      {"num_experts", &ModelConfig::num_experts},
      {"num_experts_per_tok", &ModelConfig::num_experts_per_tok}};
  for (const auto& [name, size] : sizes) {
    if (got.*size == wanted.*size) continue;
    return invalid_argument("weights to install: " + std::string(name) + " is " +
                            std::to_string(got.*size) + ", wanted " + std::to_string(wanted.*size) +
                            " as the engine's model");
  }
  if (got.is_moe_layer != wanted.is_moe_layer)
    return invalid_argument("weights to install: other layers are MoE layers, wanted the same");
  return ok_status();
}

}  // namespace warproll
