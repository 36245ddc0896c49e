// What a device arena must hold, made on the CPU from a filled host arena: the views of the model,
// packed matrix by matrix. Shares nothing with the filler but pack's CPU twins.
#pragma once

#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/moe/pack.h"
#include "rollout/model/cuda/device_weights.h"
#include "rollout/model/weights.h"
#include "tests/weights_sync/checkpoint_fixtures.h"

namespace warproll::checkpoint_fixtures {

inline ModelConfig config_of(const CheckpointFiles& files) {
  return parse_model_config(files.config_json, files.generation_config_json,
                            files.hf_quant_config_json)
      .value();
}

// What worker/ wires for a GPU.
inline LayoutFunction device_layout_function(bool quantise_to_mxfp8 = false) {
  return [=](const CheckpointFiles& files,
             std::span<const TensorInfo> tensors) -> Result<ArenaLayout> {
    const ModelConfig config = config_of(files);
    WARPROLL_TRY_ASSIGN(rows, make_arena_layout(config, tensors, quantise_to_mxfp8));
    return make_device_layout(config, rows);
  };
}

inline void pack_rows(const WeightView& rows, const TileMatrix& tiles, int32_t first_row = 0) {
  const TileTarget to = {
      .tiles = tiles, .out = const_cast<std::byte*>(tiles.data), .first_row = first_row};
  pack_elements_cpu(rows, to);
  pack_scales_cpu(rows, to);
}

inline std::vector<std::byte> device_arena_twin(const ModelConfig& config, const ArenaLayout& rows,
                                                std::span<const std::byte> arena,
                                                const ArenaLayout& device) {
  std::vector<std::byte> out(device.total_bytes);
  const ModelWeights host = bind_weights(config, rows, arena.data()).value();
  const DeviceModelWeights views = bind_device_weights(config, device, out.data()).value();
  std::map<std::string, const ArenaSlot*> slots;
  for (const ArenaSlot& slot : rows.slots) slots.emplace(slot.name, &slot);
  for (const ArenaSlot& slot : device.slots) {
    if (slot.form != SlotForm::kRows && slot.form != SlotForm::kRowsAndTiles) continue;
    std::memcpy(out.data() + slot.offset_bytes, arena.data() + slots.at(slot.name)->offset_bytes,
                slot.bytes);
  }
  for (size_t l = 0; l < views.layers.size(); ++l) {
    const LayerWeights& from = host.layers[l];
    const DeviceLayerWeights& to = views.layers[l];
    pack_rows(from.q, to.qkv);
    pack_rows(from.k, to.qkv, from.q.rows);
    pack_rows(from.v, to.qkv, from.q.rows + from.k.rows);
    pack_rows(from.o, to.o);
    const bool together = from.gate_up.data != nullptr;
    const int32_t inner = from.gate_up.rows / 2;
    const WeightView gate = together ? from.gate_up.slice_rows(0, inner) : from.gate;
    const WeightView up = together ? from.gate_up.slice_rows(inner, inner) : from.up;
    pack_gate_up_cpu(gate, up, const_cast<std::byte*>(to.gate_up.data));
    pack_down_cpu(from.down, const_cast<std::byte*>(to.down.data));
  }
  pack_rows(host.lm_head, views.lm_head);
  return out;
}

}  // namespace warproll::checkpoint_fixtures
