#include "rollout/model/quant_config.h"

#include <string>
#include <vector>

namespace warproll {
namespace {

constexpr int32_t kMxfp8Group = 32;
constexpr int32_t kMaxBlock = 1 << 16;

std::string pair_text(const std::vector<int32_t>& values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  }
  return text + "]";
}

void parse_fp8(ConfigFields& fields, ModelConfig& out) {
  const auto block = fields.integers("weight_block_size", 1, kMaxBlock);
  if (block.size() != 2) {
    fields.fail("weight_block_size is " + pair_text(block) +
                " with quant_method 'fp8', wanted [rows, cols] (per-tensor FP8 is not supported)");
    return;
  }
  out.quant = QuantScheme::kFp8Block;
  out.block_rows = block[0];
  out.block_cols = block[1];
}

void parse_mxfp8(ConfigFields& fields, ModelConfig& out) {
  const auto block = fields.integers("weight_block_size", 1, kMaxBlock);
  const std::string scales = fields.text("scale_fmt", "ue8m0");
  if (!block.empty() && block != std::vector<int32_t>{1, kMxfp8Group}) {
    fields.fail("weight_block_size is " + pair_text(block) +
                " with quant_method 'mxfp8', wanted [1, 32]");
  }
  if (scales != "ue8m0") fields.fail("scale_fmt is '" + scales + "', wanted 'ue8m0'");
  out.quant = QuantScheme::kMxfp8;
}

Status parse_compressed_tensors(ConfigFields& fields, ModelConfig& out) {
  const std::string format = fields.text("format", "");
  if (format != "mxfp8-quantized") {
    fields.fail("format is '" + format +
                "' with quant_method 'compressed-tensors', wanted 'mxfp8-quantized'");
  }
  for (ConfigFields& group : fields.objects("config_groups")) {
    ConfigFields weights = group.object("weights");
    const int32_t size = weights.integer("group_size", 1, kMaxBlock, kMxfp8Group);
    if (size != kMxfp8Group) {
      weights.fail("group_size is " + std::to_string(size) + ", wanted 32");
    }
    WARPROLL_TRY(group.status());
    WARPROLL_TRY(weights.status());
  }
  out.quant = QuantScheme::kMxfp8;
  return {};
}

void parse_modelopt(ConfigFields& fields, ModelConfig& out) {
  const std::string algorithm = fields.text("quant_algo", "");
  if (algorithm != "MXFP8") fields.fail("quant_algo is '" + algorithm + "', wanted 'MXFP8'");
  const int32_t size = fields.integer("group_size", 1, kMaxBlock, kMxfp8Group);
  if (size != kMxfp8Group) fields.fail("group_size is " + std::to_string(size) + ", wanted 32");
  const std::string kv = fields.text("kv_cache_quant_algo", "");
  if (!kv.empty()) fields.fail("kv_cache_quant_algo is '" + kv + "', wanted null");
  out.quant = QuantScheme::kMxfp8;
}

Status parse_quantization_config(ConfigFields fields, ModelConfig& out) {
  const std::string method = fields.text("quant_method", "");
  if (method == "fp8") {
    parse_fp8(fields, out);
  } else if (method == "mxfp8") {
    parse_mxfp8(fields, out);
  } else if (method == "compressed-tensors") {
    WARPROLL_TRY(parse_compressed_tensors(fields, out));
  } else if (method == "modelopt") {
    parse_modelopt(fields, out);
  } else {
    fields.fail("quant_method is '" + method +
                "', wanted 'fp8', 'mxfp8', 'compressed-tensors' or 'modelopt'");
  }
  return fields.status();
}

}  // namespace

Status parse_quant_config(ConfigFields& config, ConfigFields* hf_quant_config, ModelConfig& out) {
  if (config.has("quantization_config")) {
    const ConfigFields fields = config.object("quantization_config");
    WARPROLL_TRY(config.status());
    WARPROLL_TRY(parse_quantization_config(fields, out));
  }
  if (hf_quant_config == nullptr) return {};
  ConfigFields fields = hf_quant_config->object("quantization");
  const QuantScheme declared = out.quant;
  parse_modelopt(fields, out);
  WARPROLL_TRY(hf_quant_config->status());
  WARPROLL_TRY(fields.status());
  if (declared == QuantScheme::kFp8Block) {
    return invalid_argument(
        "hf_quant_config.json says MXFP8 and config.json says block FP8, wanted one of them");
  }
  return {};
}

}  // namespace warproll
