#include <unordered_map>

#include "kernels/quantise.h"
#include "rollout/model/tensor_table.h"
#include "rollout/model/weights.h"

namespace warproll {
namespace {

// Finds slots by name and makes views of them; the first problem is kept.
class Binder {
 public:
  Binder(const ModelConfig& config, const ArenaLayout& layout, const std::byte* arena)
      : config_(config), arena_(arena) {
    for (const ArenaSlot& slot : layout.slots) slots_.emplace(slot.name, &slot);
  }

  [[nodiscard]] bool has(const std::string& name) const { return slots_.contains(name); }
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] Dtype norm_dtype() const { return norm_dtype_; }

  const std::byte* norm(const std::string& name, int64_t size) {
    const ArenaSlot* slot = find(name, {size});
    if (slot == nullptr) return nullptr;
    norm_dtype_ = slot->dtype;
    return arena_ + slot->offset_bytes;
  }

  // [rows, cols], or [count, rows, cols] when count > 0.
  WeightView matrix(const std::string& name, int64_t rows, int64_t cols, int32_t count = 0) {
    std::vector<int64_t> shape{rows, cols};
    if (count > 0) shape.insert(shape.begin(), count);
    WeightView view;
    const ArenaSlot* slot = find(name, shape);
    if (slot == nullptr) return view;
    view.data = arena_ + slot->offset_bytes;
    view.num_matrices = count > 0 ? count : 1;
    view.rows = static_cast<int32_t>(rows);
    view.cols = static_cast<int32_t>(cols);
    view.matrix_stride_bytes = slot->bytes / static_cast<uint64_t>(view.num_matrices);
    switch (slot->dtype) {
      case Dtype::kF32:
        view.format = WeightFormat::kF32;
        break;
      case Dtype::kF16:
        view.format = WeightFormat::kF16;
        break;
      case Dtype::kBf16:
        view.format = WeightFormat::kBf16;
        break;
      case Dtype::kF8E4M3:
        bind_scales(name, view);
        break;
      default:
        fail("slot '" + name + "' is " + std::string(to_string(slot->dtype)) +
             ", wanted F32, F16, BF16 or F8_E4M3");
    }
    return view;
  }

 private:
  void fail(std::string message) {
    if (status_.ok()) status_ = invalid_argument(std::move(message));
  }

  const ArenaSlot* find(const std::string& name, const std::vector<int64_t>& shape) {
    const auto it = slots_.find(name);
    if (it == slots_.end()) {
      fail("slot '" + name + "' is missing in the layout");
      return nullptr;
    }
    if (it->second->shape == shape) return it->second;
    fail("slot '" + name + "' has shape " + shape_text(it->second->shape) + ", wanted " +
         shape_text(shape));
    return nullptr;
  }

  void bind_scales(const std::string& name, WeightView& view) {
    const auto it = slots_.find(name + ".scale");
    if (it == slots_.end()) return fail("slot '" + name + ".scale' is missing in the layout");
    const ArenaSlot& scales = *it->second;
    view.scale_dtype = scales.dtype;
    view.format = scales.dtype == Dtype::kF8E8M0 ? WeightFormat::kMxfp8 : WeightFormat::kFp8Block;
    if (view.format == WeightFormat::kFp8Block) {
      if (config_.block_rows < 1 || config_.block_cols < 1) {
        return fail("slot '" + scales.name + "' is " + std::string(to_string(scales.dtype)) +
                    ", but the config has no weight_block_size");
      }
      view.block_rows = config_.block_rows;
      view.block_cols = config_.block_cols;
    }
    view.scales = arena_ + scales.offset_bytes;
    view.scale_stride_bytes = scales.bytes / static_cast<uint64_t>(view.num_matrices);
  }

  const ModelConfig& config_;
  const std::byte* arena_;
  std::unordered_map<std::string, const ArenaSlot*> slots_;
  Dtype norm_dtype_ = Dtype::kBf16;
  Status status_;
};

LayerWeights bind_layer(Binder& binder, const ModelConfig& config, int32_t layer) {
  const std::string slot = "layers." + std::to_string(layer) + ".";
  const int64_t hidden = config.hidden_size;
  const int64_t q_rows = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_rows = int64_t{config.num_kv_heads} * config.head_dim;
  LayerWeights w;
  w.input_norm = binder.norm(slot + "input_norm", hidden);
  w.post_attention_norm = binder.norm(slot + "post_attention_norm", hidden);
  w.q_norm = binder.norm(slot + "q_norm", config.head_dim);
  w.k_norm = binder.norm(slot + "k_norm", config.head_dim);
  w.q = binder.matrix(slot + "q", q_rows, hidden);
  w.k = binder.matrix(slot + "k", kv_rows, hidden);
  w.v = binder.matrix(slot + "v", kv_rows, hidden);
  w.o = binder.matrix(slot + "o", hidden, q_rows);
  w.is_moe = config.is_moe_layer[layer];
  if (w.is_moe) w.router = binder.matrix(slot + "router", config.num_experts, hidden);
  const std::string mlp = slot + (w.is_moe ? "experts." : "mlp.");
  const int64_t intermediate = w.is_moe ? config.moe_intermediate_size : config.intermediate_size;
  const int32_t count = w.is_moe ? config.num_experts : 0;
  if (binder.has(mlp + "gate_up")) {
    w.gate_up = binder.matrix(mlp + "gate_up", 2 * intermediate, hidden, count);
  } else {
    w.gate = binder.matrix(mlp + "gate", intermediate, hidden, count);
    w.up = binder.matrix(mlp + "up", intermediate, hidden, count);
  }
  w.down = binder.matrix(mlp + "down", hidden, intermediate, count);
  return w;
}

}  // namespace

Result<ModelWeights> bind_weights(const ModelConfig& config, const ArenaLayout& layout,
                                  const std::byte* arena) {
  Binder binder(config, layout, arena);
  ModelWeights weights;
  weights.embedding = binder.matrix("embed_tokens", config.vocab_size, config.hidden_size);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    weights.layers.push_back(bind_layer(binder, config, layer));
  }
  weights.final_norm = binder.norm("norm", config.hidden_size);
  weights.lm_head = config.tie_word_embeddings
                        ? weights.embedding
                        : binder.matrix("lm_head", config.vocab_size, config.hidden_size);
  weights.norm_dtype = binder.norm_dtype();
  WARPROLL_TRY(binder.status());
  return weights;
}

}  // namespace warproll
