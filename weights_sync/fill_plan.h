// FillPlan: an ArenaLayout turned around: for each checkpoint tensor, where its bytes go. Checks
// that the layout is sound, so that filling cannot write outside a slot or leave bytes of one to
// chance. Thread: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/arena.h"
#include "protocol/records.h"
#include "protocol/status.h"
#include "weights_sync/manifest.h"
#include "weights_sync/quantise_tensor.h"

namespace warproll {

// Where rows of a tensor go in the tiles of a region (kernels/moe/pack.h: first_matrix and first_row
// of the target, the rest of the view). A stack of matrices has all their rows.
struct PlannedTiles {
  size_t region = 0;  // in ArenaLayout::tile_regions
  int32_t first_matrix = 0;
  int32_t num_matrices = 1;
  int32_t first_row = 0;
  int32_t rows = 0;
};

struct PlannedTensor {
  enum class Kind : uint8_t { kCopy, kQuantise, kAlias };
  TensorInfo info;
  Kind kind = Kind::kCopy;
  Dtype scan_as = Dtype::kF32;
  // kCopy and kQuantise: where the rows (of the elements) lie, unless they lie as tiles only.
  bool as_rows = true;
  uint64_t arena_offset = 0;
  uint64_t scales_arena_offset = 0;   // kQuantise as rows
  std::optional<PlannedTiles> tiles;  // of the elements, or of scales (then is_scale)
  bool is_scale = false;              // kCopy: into the scales of the tiles
  QuantisedTensor quantised;          // kQuantise
  size_t same_as = 0;                 // kAlias: index of the tensor it is tied to
  std::optional<Digest> expected;     // from the manifest
};

struct FillPlan {
  std::vector<PlannedTensor> tensors;
  std::map<std::string, size_t, std::less<>> index;  // by name
  bool quantises = false;
  bool has_tiles = false;  // only a device can hold it
};

// manifest may be null. Errors name the slot or tensor.
Result<FillPlan> make_fill_plan(const ArenaLayout& layout, uint64_t arena_bytes,
                                const Manifest* manifest);

// The view of what `tiles` reads, dense; data and scales null.
WeightView rows_of(const TileRegion& region, const PlannedTiles& tiles);

}  // namespace warproll
