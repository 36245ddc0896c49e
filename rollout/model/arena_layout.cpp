// make_arena_layout: walks the model in the order of its layers and gives every weight a slot.
#include "rollout/model/tensor_table.h"
#include "rollout/model/weight_plan.h"
#include "rollout/model/weights.h"

namespace warproll {
namespace {

class LayoutWalk {
 public:
  LayoutWalk(const ModelConfig& config, ArenaPlanner& planner)
      : config_(config), planner_(planner) {}

  void run() {
    add_matrix("embed_tokens", "model.embed_tokens.weight", config_.vocab_size, config_.hidden_size,
               /*linear=*/false);
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) add_layer(layer);
    planner_.add_norm("norm", "model.norm.weight", config_.hidden_size);
    add_head();
  }

 private:
  void add_matrix(const std::string& slot, const std::string& name, int64_t rows, int64_t cols,
                  bool linear) {
    planner_.add_slot(slot, {rows, cols}, {planner_.plan(name, {rows, cols}, linear)});
  }

  // Tied: the embedding serves; an lm_head that an exporter wrote all the same must equal it.
  void add_head() {
    const std::vector<int64_t> shape{config_.vocab_size, config_.hidden_size};
    if (!config_.tie_word_embeddings) {
      add_matrix("lm_head", "lm_head.weight", shape[0], shape[1], /*linear=*/false);
      return;
    }
    TensorTable& table = planner_.table();
    if (!table.has("lm_head.weight")) return;
    const TensorInfo* head = table.require("lm_head.weight", shape);
    const TensorInfo* embedding = table.find("model.embed_tokens.weight");
    if (head == nullptr || embedding == nullptr) return;
    if (head->dtype != embedding->dtype) {
      table.problem(tensor_text(*head) + ", wanted " + std::string(to_string(embedding->dtype)) +
                    " as '" + embedding->name + "', which it is tied to");
      return;
    }
    planner_.add_alias(head->name, embedding->name);
  }

  void add_layer(int32_t layer) {
    const std::string slot = "layers." + std::to_string(layer) + ".";
    const std::string name = "model.layers." + std::to_string(layer) + ".";
    const int64_t hidden = config_.hidden_size;
    const int64_t q_rows = int64_t{config_.num_heads} * config_.head_dim;
    const int64_t kv_rows = int64_t{config_.num_kv_heads} * config_.head_dim;
    planner_.add_norm(slot + "input_norm", name + "input_layernorm.weight", hidden);
    add_matrix(slot + "q", name + "self_attn.q_proj.weight", q_rows, hidden, true);
    add_matrix(slot + "k", name + "self_attn.k_proj.weight", kv_rows, hidden, true);
    add_matrix(slot + "v", name + "self_attn.v_proj.weight", kv_rows, hidden, true);
    planner_.add_norm(slot + "q_norm", name + "self_attn.q_norm.weight", config_.head_dim);
    planner_.add_norm(slot + "k_norm", name + "self_attn.k_norm.weight", config_.head_dim);
    add_matrix(slot + "o", name + "self_attn.o_proj.weight", hidden, q_rows, true);
    planner_.add_norm(slot + "post_attention_norm", name + "post_attention_layernorm.weight",
                      hidden);
    if (!config_.is_moe_layer[layer]) {
      add_mlp(slot + "mlp.", {name + "mlp."}, config_.intermediate_size, /*stacked=*/false);
      return;
    }
    add_matrix(slot + "router", name + "mlp.gate.weight", config_.num_experts, hidden, false);
    if (planner_.table().has(name + "mlp.experts.gate_up_proj") ||
        planner_.table().has(name + "mlp.experts.down_proj")) {
      add_fused_experts(slot + "experts.", name + "mlp.experts.");
      return;
    }
    std::vector<std::string> experts;
    for (int32_t e = 0; e < config_.num_experts; ++e) {
      experts.push_back(name + "mlp.experts." + std::to_string(e) + ".");
    }
    add_mlp(slot + "experts.", experts, config_.moe_intermediate_size, /*stacked=*/true);
  }

  // Per-expert tensors (or the one dense MLP). Gate and up share a slot, gate rows first, unless
  // their formats differ or their block scales would straddle the border.
  void add_mlp(const std::string& slot, const std::vector<std::string>& prefixes,
               int64_t intermediate, bool stacked) {
    const int64_t hidden = config_.hidden_size;
    std::vector<WeightPlan> gates, ups, downs, gate_ups;
    for (const std::string& prefix : prefixes) {
      gates.push_back(planner_.plan(prefix + "gate_proj.weight", {intermediate, hidden}, true));
      ups.push_back(planner_.plan(prefix + "up_proj.weight", {intermediate, hidden}, true));
      downs.push_back(planner_.plan(prefix + "down_proj.weight", {hidden, intermediate}, true));
      gate_ups.push_back(gates.back());
      gate_ups.push_back(ups.back());
    }
    const auto shape = [&](int64_t rows, int64_t cols) {
      const auto count = static_cast<int64_t>(prefixes.size());
      return stacked ? std::vector<int64_t>{count, rows, cols} : std::vector<int64_t>{rows, cols};
    };
    // A gate that is not usable (a missing block size, say) is a problem noted already.
    const bool straddles = gates.front().tensor != nullptr &&
                           gates.front().format == WeightFormat::kFp8Block &&
                           intermediate % config_.block_rows != 0;
    if (gates.front().same_format(ups.front()) && !straddles) {
      planner_.add_slot(slot + "gate_up", shape(2 * intermediate, hidden), gate_ups);
    } else {
      planner_.add_slot(slot + "gate", shape(intermediate, hidden), gates);
      planner_.add_slot(slot + "up", shape(intermediate, hidden), ups);
    }
    planner_.add_slot(slot + "down", shape(hidden, intermediate), downs);
  }

  void add_fused_experts(const std::string& slot, const std::string& prefix) {
    const std::vector<int64_t> gate_up_shape{
        config_.num_experts, 2 * int64_t{config_.moe_intermediate_size}, config_.hidden_size};
    const std::vector<int64_t> down_shape{config_.num_experts, config_.hidden_size,
                                          config_.moe_intermediate_size};
    const WeightPlan gate_up = planner_.plan(prefix + "gate_up_proj", gate_up_shape, true);
    if (gate_up.tensor != nullptr && gate_up.format == WeightFormat::kFp8Block &&
        config_.moe_intermediate_size % config_.block_rows != 0) {
      planner_.table().problem(tensor_text(*gate_up.tensor) +
                               " has a block scale across gate and up, wanted an intermediate "
                               "size that is a multiple of " +
                               std::to_string(config_.block_rows) + " or tensors per expert");
    }
    planner_.add_slot(slot + "gate_up", gate_up_shape, {gate_up});
    planner_.add_slot(slot + "down", down_shape,
                      {planner_.plan(prefix + "down_proj", down_shape, true)});
  }

  const ModelConfig& config_;
  ArenaPlanner& planner_;
};

}  // namespace

Result<ArenaLayout> make_arena_layout(const ModelConfig& config,
                                      std::span<const TensorInfo> tensors, bool quantise_to_mxfp8) {
  TensorTable table(tensors);
  ArenaPlanner planner(config, table, quantise_to_mxfp8);
  LayoutWalk(config, planner).run();
  WARPROLL_TRY(table.finish());
  return planner.take();
}

Result<std::vector<std::string>> mxfp8_export_tensors(const ModelConfig& config,
                                                      std::span<const TensorInfo> tensors) {
  WARPROLL_TRY_ASSIGN(layout, make_arena_layout(config, tensors, /*quantise_to_mxfp8=*/true));
  std::vector<std::string> names;
  for (const ArenaSlot& slot : layout.slots) {
    for (const SlotSource& source : slot.sources) {
      if (source.transform == FillTransform::kQuantiseMxfp8) names.push_back(source.tensor_name);
    }
  }
  return names;
}

}  // namespace warproll
