// ArenaLayout: where each weight of a model lies in one contiguous weight arena, and which
// checkpoint tensors fill it. rollout/model makes it, weights_sync fills it and knows no model,
// the ops read it through WeightView. Plain data, no memory of its own. Thread: plain values.
//
// In host memory every slot lies as rows. In a GPU's memory the matrices that are multiplied lie as
// tiles (kernels/moe/tiles.h): several slots share one TileRegion, q, k and v for instance, and the
// elements and the scales of a slot interleave in it. Sources, shape, dtype and bytes of a slot are
// always those of its rows, so weights_sync fills both kinds and knows no model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/weight.h"

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

enum class SlotForm : uint8_t {
  kRows,          // [offset_bytes, + bytes) of the arena
  kTiles,         // elements in a tile region; offset_bytes unused
  kRowsAndTiles,  // both: a tied embedding, looked up as rows and multiplied as lm_head
  kTileScales,    // the scales of a kTiles slot, folded into the same region; offset_bytes unused
};

struct ArenaSlot {
  std::string name;  // "layers.3.experts.gate_up", for errors and the layout digest
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  uint64_t offset_bytes = 0;        // in the arena, multiple of kArenaAlignment
  uint64_t bytes = 0;               // of the rows
  std::vector<SlotSource> sources;  // empty only for a scale slot that quantisation fills
  SlotForm form = SlotForm::kRows;
  int32_t tile_region = -1;  // of the forms with tiles: index in ArenaLayout::tile_regions
  // Of them: the slot's rows are [first_row, + num_rows) of each of the region's matrices. A scale
  // slot has its elements' numbers.
  int32_t first_row = 0;
  int32_t num_rows = 0;
};

// Matrices [num_matrices, rows, cols] as one TileMatrix (tile_matrix() in kernels/moe/pack.h).
struct TileRegion {
  std::string name;                          // "layers.3.qkv"
  WeightFormat format = WeightFormat::kF32;  // of the rows: kF16, kBf16, kMxfp8 or kFp8Block
  bool gate_up = false;  // rows [0, rows / 2) are gate, the others up: a tile has 8 of each
  int32_t num_matrices = 0;
  int32_t rows = 0;                         // multiple of 16
  int32_t cols = 0;                         // multiple of 32
  int32_t block_rows = 1, block_cols = 32;  // of the scales, as WeightView
  Dtype scale_dtype = Dtype::kF8E8M0;
  uint64_t offset_bytes = 0;  // in the arena, multiple of kArenaAlignment
  uint64_t bytes = 0;         // of the tiles
};

// A tensor that must equal another one bit for bit and gets no room of its own
// (a tied lm_head.weight that an exporter wrote all the same).
struct AliasTensor {
  std::string tensor_name;
  std::string same_as;
};

inline constexpr uint64_t kArenaAlignment = 256;
constexpr uint64_t align_to_arena(uint64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

struct ArenaLayout {
  std::vector<ArenaSlot> slots;  // in offset order, those that have an offset
  std::vector<AliasTensor> aliases;
  uint64_t total_bytes = 0;
  std::vector<TileRegion> tile_regions;  // in offset order; empty in host memory
};

}  // namespace warproll
