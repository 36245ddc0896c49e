// parse_model_config and make_arena_layout on any bytes: an error or a config whose layout holds
// together, never a crash. A NUL byte parts config.json, generation_config.json and
// hf_quant_config.json.
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "rollout/model/model_config.h"
#include "rollout/model/weights.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::string_view parts[3];
  for (std::string_view& part : parts) {
    part = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(part.size() < rest.size() ? part.size() + 1 : rest.size());
  }
  const auto config = warproll::parse_model_config(parts[0], parts[1], parts[2]);
  if (!config.ok()) return 0;
  // What forward() relies on without asking again.
  if (config->num_heads % config->num_kv_heads != 0 || config->head_dim % 2 != 0 ||
      config->num_experts_per_tok > config->num_experts ||
      config->is_moe_layer.size() != static_cast<size_t>(config->num_layers)) {
    std::abort();
  }
  if (config->num_layers > 4 || config->num_experts > 16) return 0;
  const std::vector<warproll::TensorInfo> tensors{
      {"model.embed_tokens.weight", warproll::Dtype::kF8E4M3, {512, 64}, 512 * 64},
      {"model.embed_tokens.weight_scale_inv", warproll::Dtype::kF32, {4, 1}, 16},
      {"lm_head.weight", warproll::Dtype::kBf16, {512, 64}, 512 * 64 * 2}};
  if (warproll::make_arena_layout(*config, tensors, size % 2 == 0).ok()) std::abort();
  return 0;
}
