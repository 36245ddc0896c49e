#include "rollout/model/model_config.h"

#include <algorithm>

#include "kernels/attention.h"
#include "kernels/router.h"
#include "rollout/model/config_fields.h"
#include "rollout/model/quant_config.h"

namespace warproll {
namespace {

constexpr char kArchitecture[] = "Qwen3MoeForCausalLM";
constexpr char kModelType[] = "qwen3_moe";
// Far above any model of this family, and low enough that no product of two overflows int64_t.
constexpr int32_t kMaxDim = 1 << 20;
constexpr int32_t kMaxVocab = 1 << 24;
constexpr int32_t kMaxLayers = 1024;
constexpr int32_t kMaxHeads = 1024;
constexpr int32_t kMaxPositions = 1 << 27;

void parse_architecture(ConfigFields& fields, ModelConfig& out) {
  for (const std::string& name : fields.texts("architectures")) {
    out.architecture += (out.architecture.empty() ? "" : ", ") + name;
  }
  if (fields.has("architectures") && out.architecture != kArchitecture) {
    fields.fail("architecture is '" + out.architecture.substr(0, 80) + "', wanted '" +
                kArchitecture + "'");
  }
  const std::string model_type =
      fields.text("model_type", out.architecture.empty() ? "" : kModelType);
  if (model_type != kModelType) {
    fields.fail("model_type is '" + model_type + "', wanted '" + kModelType + "'");
  }
  out.architecture = kArchitecture;
}

void refuse_unsupported(ConfigFields& fields) {
  const std::string act = fields.text("hidden_act", "silu");
  if (act != "silu") fields.fail("hidden_act is '" + act + "', wanted 'silu'");
  if (fields.boolean("attention_bias", false)) {
    fields.fail("attention_bias is true, wanted false");
  }
  if (fields.boolean("use_sliding_window", false)) {
    fields.fail("use_sliding_window is true, wanted false");
  }
}

void check_rope_type(ConfigFields& fields, const std::string& where, const std::string& type,
                     bool given) {
  if (given && type != "default") {
    fields.fail(where + " asks for rope type '" + type + "', wanted 'default'");
  }
}

// rope_theta at top level (transformers 4) or inside rope_parameters (transformers 5).
Status parse_rope(ConfigFields& fields, ModelConfig& out) {
  constexpr double kLow = 1.0, kHigh = 1e12;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.has(key)) continue;
    ConfigFields rope = fields.object(key);
    const bool typed = rope.has("rope_type") || rope.has("type");
    check_rope_type(rope, key, rope.text("rope_type", rope.text("type", "")),
                    typed || std::string_view(key) == "rope_scaling");
    if (rope.number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0) {
      rope.fail("partial_rotary_factor is not 1, wanted 1");
    }
    WARPROLL_TRY(rope.status());
  }
  ConfigFields inner = fields.object("rope_parameters");
  const bool inside = inner.has("rope_theta");
  if (inside) out.rope_theta = inner.number("rope_theta", kLow, kHigh);
  WARPROLL_TRY(inner.status());
  if (inside && !fields.has("rope_theta")) return {};
  const double top = fields.number("rope_theta", kLow, kHigh);
  if (inside && top != out.rope_theta) {
    fields.fail("rope_theta is " + std::to_string(top) + " at top level and " +
                std::to_string(out.rope_theta) + " in rope_parameters, wanted one value");
  }
  out.rope_theta = top;
  return {};
}

void parse_attention(ConfigFields& fields, ModelConfig& out) {
  out.hidden_size = fields.integer("hidden_size", 1, kMaxDim);
  out.vocab_size = fields.integer("vocab_size", 1, kMaxVocab);
  out.num_layers = fields.integer("num_hidden_layers", 1, kMaxLayers);
  out.num_heads = fields.integer("num_attention_heads", 1, kMaxHeads);
  out.num_kv_heads = fields.integer("num_key_value_heads", 1, kMaxHeads);
  out.head_dim =
      fields.integer("head_dim", 1, kMaxHeadDim, std::max(out.hidden_size / out.num_heads, 1));
  if (out.num_heads % out.num_kv_heads != 0) {
    fields.fail("num_key_value_heads is " + std::to_string(out.num_kv_heads) +
                ", wanted a divisor of num_attention_heads " + std::to_string(out.num_heads));
  }
  if (out.head_dim % 2 != 0 || out.head_dim > kMaxHeadDim) {
    fields.fail("head_dim is " + std::to_string(out.head_dim) + ", wanted an even number up to " +
                std::to_string(kMaxHeadDim));
  }
  out.rms_norm_eps = static_cast<float>(fields.number("rms_norm_eps", 1e-12, 1e-1));
  out.max_position_embeddings = fields.integer("max_position_embeddings", 1, kMaxPositions);
  out.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
}

void parse_experts(ConfigFields& fields, ModelConfig& out) {
  const char* key = fields.has("num_experts") ? "num_experts" : "num_local_experts";
  out.num_experts = fields.integer(key, 1, kMaxExperts);
  if (fields.integer("num_local_experts", 1, kMaxExperts, out.num_experts) != out.num_experts) {
    fields.fail("num_experts is " + std::to_string(out.num_experts) +
                " and num_local_experts another number, wanted one value");
  }
  out.num_experts_per_tok =
      fields.integer("num_experts_per_tok", 1, std::min(out.num_experts, kMaxTopK));
  out.moe_intermediate_size = fields.integer("moe_intermediate_size", 1, kMaxDim);
  out.norm_topk_prob = fields.boolean("norm_topk_prob", false);  // transformers' default
  const int32_t step = fields.integer("decoder_sparse_step", 1, kMaxLayers, 1);
  const auto dense = fields.integers("mlp_only_layers", 0, out.num_layers - 1);
  bool any_dense = false;
  for (int32_t layer = 0; layer < out.num_layers; ++layer) {
    const bool listed = std::find(dense.begin(), dense.end(), layer) != dense.end();
    out.is_moe_layer.push_back(!listed && (layer + 1) % step == 0);
    any_dense = any_dense || !out.is_moe_layer.back();
  }
  // Only dense layers use it: required when there are any.
  out.intermediate_size = fields.integer("intermediate_size", 1, kMaxDim,
                                         any_dense ? std::nullopt : std::optional<int32_t>(0));
}

}  // namespace

int32_t ModelConfig::num_moe_layers() const {
  return static_cast<int32_t>(std::count(is_moe_layer.begin(), is_moe_layer.end(), true));
}

Result<ModelConfig> parse_model_config(std::string_view config_json,
                                       std::string_view generation_config_json,
                                       std::string_view hf_quant_config_json) {
  WARPROLL_TRY_ASSIGN(fields, ConfigFields::parse(config_json, "config.json"));
  ModelConfig out;
  parse_architecture(fields, out);
  WARPROLL_TRY(fields.status());  // another architecture explains all that would follow
  refuse_unsupported(fields);
  parse_attention(fields, out);
  WARPROLL_TRY(fields.status());  // sizes that the next ranges are made of
  parse_experts(fields, out);
  WARPROLL_TRY(parse_rope(fields, out));
  out.eos_token_ids = fields.integers("eos_token_id", 0, out.vocab_size - 1, true);
  WARPROLL_TRY(fields.status());

  std::optional<ConfigFields> hf_quant;  // absent = empty text
  if (!hf_quant_config_json.empty()) {
    WARPROLL_TRY_ASSIGN(file, ConfigFields::parse(hf_quant_config_json, "hf_quant_config.json"));
    hf_quant = std::move(file);
  }
  WARPROLL_TRY(parse_quant_config(fields, hf_quant ? &*hf_quant : nullptr, out));

  if (generation_config_json.empty()) return out;
  WARPROLL_TRY_ASSIGN(generation,
                      ConfigFields::parse(generation_config_json, "generation_config.json"));
  if (generation.has("eos_token_id")) {
    out.eos_token_ids = generation.integers("eos_token_id", 0, out.vocab_size - 1, true);
  }
  WARPROLL_TRY(generation.status());
  return out;
}

}  // namespace warproll
