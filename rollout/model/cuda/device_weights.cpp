#include <unordered_map>

#include "kernels/moe/pack.h"
#include "rollout/model/cuda/device_weights.h"
#include "rollout/model/tensor_table.h"

namespace warproll {
namespace {

// Finds slots and tile regions by name and makes views of them; the first problem is kept.
class DeviceBinder {
 public:
  DeviceBinder(const ArenaLayout& layout, const std::byte* arena) : arena_(arena) {
    for (const ArenaSlot& slot : layout.slots) slots_.emplace(slot.name, &slot);
    for (const TileRegion& region : layout.tile_regions) regions_.emplace(region.name, &region);
  }

  [[nodiscard]] const Status& status() const { return status_; }

  const std::byte* rows(const std::string& name, const std::vector<int64_t>& shape, Dtype& dtype) {
    const auto it = slots_.find(name);
    if (it == slots_.end()) {
      fail("slot '" + name + "' is missing in the layout");
      return nullptr;
    }
    const ArenaSlot& slot = *it->second;
    if (slot.form != SlotForm::kRows && slot.form != SlotForm::kRowsAndTiles) {
      fail("slot '" + name + "' does not lie as rows, wanted rows");
    } else if (slot.shape != shape) {
      fail("slot '" + name + "' has shape " + shape_text(slot.shape) + ", wanted " +
           shape_text(shape));
    }
    dtype = slot.dtype;
    return arena_ + slot.offset_bytes;
  }

  TileMatrix tiles(const std::string& name, int64_t rows, int64_t cols, int64_t count = 1) {
    const auto it = regions_.find(name);
    if (it == regions_.end()) {
      fail("tiles '" + name + "' are missing in the layout");
      return {};
    }
    const TileRegion& region = *it->second;
    const std::vector<int64_t> got{region.num_matrices, region.rows, region.cols};
    const std::vector<int64_t> wanted{count, rows, cols};
    if (got != wanted) {
      fail("tiles '" + name + "' have shape " + shape_text(got) + ", wanted " + shape_text(wanted));
    }
    return tile_matrix(region, arena_);
  }

 private:
  void fail(std::string message) {
    if (status_.ok()) status_ = invalid_argument(std::move(message));
  }

  const std::byte* arena_;
  std::unordered_map<std::string, const ArenaSlot*> slots_;
  std::unordered_map<std::string, const TileRegion*> regions_;
  Status status_;
};

DeviceLayerWeights bind_layer(DeviceBinder& binder, const ModelConfig& config, int32_t layer,
                              Dtype& norm_dtype) {
  const std::string slot = "layers." + std::to_string(layer) + ".";
  const int64_t hidden = config.hidden_size;
  const int64_t q_rows = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_rows = int64_t{config.num_kv_heads} * config.head_dim;
  DeviceLayerWeights w;
  w.input_norm = binder.rows(slot + "input_norm", {hidden}, norm_dtype);
  w.post_attention_norm = binder.rows(slot + "post_attention_norm", {hidden}, norm_dtype);
  w.q_norm = binder.rows(slot + "q_norm", {config.head_dim}, norm_dtype);
  w.k_norm = binder.rows(slot + "k_norm", {config.head_dim}, norm_dtype);
  w.qkv = binder.tiles(slot + "qkv", q_rows + 2 * kv_rows, hidden);
  w.o = binder.tiles(slot + "o", hidden, q_rows);
  w.is_moe = config.is_moe_layer[static_cast<size_t>(layer)];
  const int64_t count = w.is_moe ? config.num_experts : 1;
  const int64_t intermediate = w.is_moe ? config.moe_intermediate_size : config.intermediate_size;
  const std::string mlp = slot + (w.is_moe ? "experts." : "mlp.");
  if (w.is_moe) w.router = binder.rows(slot + "router", {count, hidden}, w.router_dtype);
  w.gate_up = binder.tiles(mlp + "gate_up", 2 * intermediate, hidden, count);
  w.down = binder.tiles(mlp + "down", hidden, intermediate, count);
  return w;
}

WeightFormat format_of(Dtype dtype) {
  if (dtype == Dtype::kF32) return WeightFormat::kF32;
  return dtype == Dtype::kF16 ? WeightFormat::kF16 : WeightFormat::kBf16;
}

}  // namespace

Result<DeviceModelWeights> bind_device_weights(const ModelConfig& config, const ArenaLayout& layout,
                                               const std::byte* arena) {
  DeviceBinder binder(layout, arena);
  DeviceModelWeights weights;
  Dtype dtype = Dtype::kBf16;
  WeightView& embedding = weights.embedding;
  embedding.data = binder.rows("embed_tokens", {config.vocab_size, config.hidden_size}, dtype);
  embedding.format = format_of(dtype);
  embedding.rows = config.vocab_size;
  embedding.cols = config.hidden_size;
  embedding.matrix_stride_bytes = static_cast<uint64_t>(embedding.rows) *
                                  static_cast<uint64_t>(embedding.cols) * dtype_bytes(dtype);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    weights.layers.push_back(bind_layer(binder, config, layer, weights.norm_dtype));
  }
  weights.final_norm = binder.rows("norm", {config.hidden_size}, weights.norm_dtype);
  weights.lm_head = binder.tiles("lm_head", config.vocab_size, config.hidden_size);
  WARPROLL_TRY(binder.status());
  return weights;
}

}  // namespace warproll
