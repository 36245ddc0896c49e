// ArenaLayout: where each weight of a model lies in one contiguous weight arena, and which
// checkpoint tensors fill it. rollout/model makes it, weights_sync fills it and knows no model,
// the ops read it through WeightView. Plain data, no memory of its own. Thread: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/dtype.h"

namespace warproll {

// One tensor as a checkpoint or a manifest names it.
struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;  // product(shape) * dtype_bytes(dtype)
};

enum class FillTransform : uint8_t {
  kCopy,           // the tensor's bytes, contiguous, at slot_offset_bytes
  kQuantiseMxfp8,  // BF16/F32 [.., rows, cols] -> E4M3 at slot_offset_bytes of this slot, and
                   // E8M0 [.., rows, cols / 32] at scale_offset_bytes of slot scale_slot
};

// One checkpoint tensor and where its bytes go. Stacking (q|k|v, gate|up, experts) is several
// sources with their own offsets in one slot.
struct SlotSource {
  std::string tensor_name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  FillTransform transform = FillTransform::kCopy;
  uint64_t slot_offset_bytes = 0;
  int32_t scale_slot = -1;
  uint64_t scale_offset_bytes = 0;
};

struct ArenaSlot {
  std::string name;  // "layers.3.experts.gate_up", for errors and the layout digest
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  uint64_t offset_bytes = 0;  // in the arena, multiple of kArenaAlignment
  uint64_t bytes = 0;
  std::vector<SlotSource> sources;  // empty only for a scale slot that quantisation fills
};

// A tensor that must equal another one bit for bit and gets no room of its own
// (a tied lm_head.weight that an exporter wrote all the same).
struct AliasTensor {
  std::string tensor_name;
  std::string same_as;
};

inline constexpr uint64_t kArenaAlignment = 256;

struct ArenaLayout {
  std::vector<ArenaSlot> slots;  // in offset order
  std::vector<AliasTensor> aliases;
  uint64_t total_bytes = 0;
};

}  // namespace warproll
