// From a ModelConfig and the tensors a checkpoint has to an arena layout, and from a filled arena
// to the typed views that forward() reads. Lifetime: ModelWeights points into the arena, WeightSet
// keeps that arena alive. Thread: immutable once built.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/arena.h"
#include "kernels/weight.h"
#include "protocol/records.h"
#include "protocol/status.h"
#include "rollout/model/model_config.h"

namespace warproll {

struct LayerWeights {
  const std::byte* input_norm = nullptr;           // [H]
  const std::byte* post_attention_norm = nullptr;  // [H]
  const std::byte* q_norm = nullptr;               // [D]
  const std::byte* k_norm = nullptr;               // [D]
  WeightView q, k, v;                              // [num_heads*D, H], [num_kv_heads*D, H] x 2
  WeightView o;                                    // [H, num_heads*D]
  bool is_moe = false;
  WeightView router;   // [E, H]
  WeightView gate_up;  // MoE: E x [2I, H], gate rows first; dense: [2*intermediate, H]
  WeightView down;     // MoE: E x [H, I]; dense: [H, intermediate]
  // When the checkpoint quantises gate and up apart (ragged block scales) they stay apart:
  WeightView gate, up;  // used when gate_up.data is null
};
struct ModelWeights {
  WeightView embedding;                   // [V, H]
  const std::byte* final_norm = nullptr;  // [H]
  Dtype norm_dtype = Dtype::kBf16;        // of every norm weight
  WeightView lm_head;                     // [V, H]; the embedding when tied
  std::vector<LayerWeights> layers;
};

// Unknown, missing, duplicated or mis-shaped tensors and scales are errors that name the tensor,
// the shape got and the shape wanted. quantise_to_mxfp8: BF16, F16 and F32 linear weights become
// MXFP8 on the way in (all but router, lm_head, embedding, norms).
Result<ArenaLayout> make_arena_layout(const ModelConfig& config,
                                      std::span<const TensorInfo> tensors, bool quantise_to_mxfp8);

// The tensors that `checkpoint quantize` turns into MXFP8, in layout order: exactly those that
// make_arena_layout with quantise_to_mxfp8 quantises on receive. Errors: as make_arena_layout.
Result<std::vector<std::string>> mxfp8_export_tensors(const ModelConfig& config,
                                                      std::span<const TensorInfo> tensors);

// Views into `arena`, which has been filled as `layout` says (the same config made it). Errors
// name the slot that is missing or has another dtype or shape.
Result<ModelWeights> bind_weights(const ModelConfig& config, const ArenaLayout& layout,
                                  const std::byte* arena);

struct DeviceModelWeights;  // rollout/model/cuda/device_weights.h

// One version of the weights, ready to run: on the host (weights) or on a GPU (device). `storage` keeps the arena from being overwritten for
// as long as any sequence may read it.
struct WeightSet {
  uint64_t weight_version = 0;
  Digest weight_digest{};
  ModelConfig config;
  ModelWeights weights;                              // empty when device is there
  std::shared_ptr<const DeviceModelWeights> device;  // null on the host
  std::shared_ptr<const void> storage;
};
using WeightSetPtr = std::shared_ptr<const WeightSet>;

}  // namespace warproll
