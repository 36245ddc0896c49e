// ModelConfig: what config.json (transformers 4 and 5 dialects), generation_config.json and
// hf_quant_config.json say of a Qwen3-MoE checkpoint. Another architecture is an error that names
// it. Thread: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/status.h"

namespace warproll {

enum class QuantScheme : uint8_t {
  kNone,
  kMxfp8,
  kFp8Block
};  // declared; dtypes decide per tensor

struct ModelConfig {
  std::string architecture;  // "Qwen3MoeForCausalLM"
  int32_t hidden_size = 0;   // H
  int32_t vocab_size = 0;    // V
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;               // D
  int32_t intermediate_size = 0;      // of dense layers
  int32_t moe_intermediate_size = 0;  // I
  int32_t num_experts = 0;            // E
  int32_t num_experts_per_tok = 0;    // K
  bool norm_topk_prob = true;
  bool tie_word_embeddings = false;
  float rms_norm_eps = 1e-6f;
  double rope_theta = 10000.0;
  int32_t max_position_embeddings = 0;
  std::vector<bool> is_moe_layer;  // [num_layers], from decoder_sparse_step, mlp_only_layers
  std::vector<int32_t>
      eos_token_ids;  // from generation_config.json, else config.json; may be empty
  QuantScheme quant = QuantScheme::kNone;
  int32_t block_rows = 0;  // of kFp8Block
  int32_t block_cols = 0;

  [[nodiscard]] int32_t num_moe_layers() const;
};

// The three files' texts; the last two may be empty (absent).
Result<ModelConfig> parse_model_config(std::string_view config_json,
                                       std::string_view generation_config_json,
                                       std::string_view hf_quant_config_json);

}  // namespace warproll
