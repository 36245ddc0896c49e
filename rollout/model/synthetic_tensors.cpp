#include "rollout/model/synthetic_tensors.h"

#include <string>

#include "kernels/quantise.h"

namespace warproll {
namespace {

class TensorList {
 public:
  explicit TensorList(SyntheticFormat format) : format_(format) {}

  void add(const std::string& name, std::vector<int64_t> shape) {
    add(name, Dtype::kBf16, std::move(shape));
  }
  void add_expert(const std::string& name, int64_t rows, int64_t cols) {
    if (format_ == SyntheticFormat::kBf16) return add(name, {rows, cols});
    add(name, Dtype::kF8E4M3, {rows, cols});
    add(name + "_scale_inv", Dtype::kU8, {rows, cols / kMxfp8BlockCols});
  }
  std::vector<TensorInfo> take() { return std::move(tensors_); }

 private:
  void add(const std::string& name, Dtype dtype, std::vector<int64_t> shape) {
    uint64_t bytes = dtype_bytes(dtype);
    for (const int64_t size : shape) bytes *= static_cast<uint64_t>(size);
    tensors_.push_back({name, dtype, std::move(shape), bytes});
  }

  SyntheticFormat format_;
  std::vector<TensorInfo> tensors_;
};

void add_layer(const ModelConfig& config, int32_t layer, TensorList& list) {
  const std::string name = "model.layers." + std::to_string(layer) + ".";
  const int64_t hidden = config.hidden_size;
  const int64_t q_rows = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_rows = int64_t{config.num_kv_heads} * config.head_dim;
  list.add(name + "input_layernorm.weight", {hidden});
  list.add(name + "post_attention_layernorm.weight", {hidden});
  list.add(name + "self_attn.q_norm.weight", {config.head_dim});
  list.add(name + "self_attn.k_norm.weight", {config.head_dim});
  list.add(name + "self_attn.q_proj.weight", {q_rows, hidden});
  list.add(name + "self_attn.k_proj.weight", {kv_rows, hidden});
  list.add(name + "self_attn.v_proj.weight", {kv_rows, hidden});
  list.add(name + "self_attn.o_proj.weight", {hidden, q_rows});
  const auto add_mlp = [&](const std::string& prefix, int64_t intermediate) {
    list.add_expert(prefix + "gate_proj.weight", intermediate, hidden);
    list.add_expert(prefix + "up_proj.weight", intermediate, hidden);
    list.add_expert(prefix + "down_proj.weight", hidden, intermediate);
  };
  if (!config.is_moe_layer[static_cast<size_t>(layer)]) {
    return add_mlp(name + "mlp.", config.intermediate_size);
  }
  list.add(name + "mlp.gate.weight", {config.num_experts, hidden});
  for (int32_t e = 0; e < config.num_experts; ++e) {
    add_mlp(name + "mlp.experts." + std::to_string(e) + ".", config.moe_intermediate_size);
  }
}

}  // namespace

std::optional<SyntheticFormat> synthetic_format_from(std::string_view word) {
  if (word == "bf16") return SyntheticFormat::kBf16;
  if (word == "mxfp8_experts") return SyntheticFormat::kMxfp8Experts;
  return std::nullopt;
}

std::vector<TensorInfo> synthetic_tensors(const ModelConfig& config, SyntheticFormat format) {
  TensorList list(format);
  list.add("model.embed_tokens.weight", {config.vocab_size, config.hidden_size});
  for (int32_t layer = 0; layer < config.num_layers; ++layer) add_layer(config, layer, list);
  list.add("model.norm.weight", {config.hidden_size});
  if (!config.tie_word_embeddings) {
    list.add("lm_head.weight", {config.vocab_size, config.hidden_size});
  }
  return list.take();
}

}  // namespace warproll
