// DeviceModelWeights: the typed views of a filled device arena that the GPU's forward reads. Matrices
// that are multiplied lie as tiles (kernels/moe/tiles.h), norms, router and embedding as in the
// checkpoint. A tied model's embedding lies there twice: as rows to look up, as tiles for lm_head.
// Lifetime: points into the arena. Thread: plain values.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/arena.h"
#include "kernels/moe/tiles.h"
#include "kernels/weight.h"
#include "protocol/status.h"
#include "rollout/model/model_config.h"

namespace warproll {

struct DeviceLayerWeights {
  const std::byte* input_norm = nullptr;           // [H]
  const std::byte* post_attention_norm = nullptr;  // [H]
  const std::byte* q_norm = nullptr;               // [D]
  const std::byte* k_norm = nullptr;               // [D]
  TileMatrix qkv;  // rows of q, k, v in this order: [(num_heads + 2 num_kv_heads) * D, H]
  TileMatrix o;    // [H, num_heads * D]
  bool is_moe = false;
  const std::byte* router = nullptr;  // [E, H], MoE layers
  Dtype router_dtype = Dtype::kBf16;  // kBf16 or kF32
  TileMatrix gate_up, down;           // of E experts; a dense MLP is one expert
  // Experts as rows too, for benches of the literal path; data null in an arena.
  WeightView gate_rows, up_rows, down_rows;  // E x [I, H], [I, H], [H, I]
};
struct DeviceModelWeights {
  WeightView embedding;  // [V, H], rows
  TileMatrix lm_head;    // [V, H]
  const std::byte* final_norm = nullptr;
  Dtype norm_dtype = Dtype::kBf16;  // of every norm weight
  std::vector<DeviceLayerWeights> layers;
};

// The layout of a device arena for what `rows` (make_arena_layout) lays out in host memory: the same
// slots and sources, other places and forms. Errors name the slot, and what a GPU cannot hold: F32
// linear weights, q, k and v (or gate and up) of different formats, sizes that tiles do not divide.
Result<ArenaLayout> make_device_layout(const ModelConfig& config, const ArenaLayout& rows);

// Views into `arena`, device memory filled as make_device_layout's `layout` says.
Result<DeviceModelWeights> bind_device_weights(const ModelConfig& config, const ArenaLayout& layout,
                                               const std::byte* arena);

}  // namespace warproll
