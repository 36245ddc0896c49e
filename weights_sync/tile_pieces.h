// TilePieces: the tile regions of a layout cut into pieces that several tensors fill and that are moved
// whole: tiles of one matrix that are neighbours, as many as fit a slot of memory elsewhere. What a host
// arena gets from a device is put together there, piece by piece (weights_sync/cuda/tile_staging.h).
// In its slot a piece is a TileMatrix of one matrix: records, then row scales. In the arena the two lie
// apart. Thread: immutable once made. Lifetime: the layout outlives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/moe/pack.h"
#include "weights_sync/fill_plan.h"

namespace warproll {

// What a worker that keeps its standby on the host has in GPU memory for that (host_staged): pieces of two
// buckets of 64 MB, one on its way out while the next is packed.
inline constexpr uint64_t kTileSlotBytes = uint64_t{4} << 20;
inline constexpr uint64_t kNumTileSlots = 48;
inline constexpr uint64_t kTileStagingBytes = kTileSlotBytes * kNumTileSlots;

struct TilePiece {
  size_t region = 0;
  int32_t matrix = 0;
  int32_t first_tile = 0, num_tiles = 0;
  uint32_t num_parts = 0;  // TileParts that fill it, of all tensors
  bool fits = false;       // a slot has room for it
  // In the arena; in the slot the row scales are behind the records.
  uint64_t records_at = 0, records_bytes = 0;
  uint64_t row_scales_at = 0, row_scales_bytes = 0;
};

// Rows of a tensor that belong to one piece.
struct TilePart {
  size_t piece = 0;
  WeightView rows;
  TileTarget to_slot;   // `out` is the slot, to be set
  TileTarget to_arena;  // `out` is the region in the arena, to be set
};

class TilePieces {
 public:
  TilePieces(const ArenaLayout& layout, const FillPlan& plan, uint64_t slot_bytes);

  [[nodiscard]] const std::vector<TilePiece>& all() const { return pieces_; }
  // rows: rows_of() the tensor's tiles, with its elements, its scales or both. All of its parts.
  [[nodiscard]] std::vector<TilePart> parts_of(const PlannedTiles& tiles,
                                               const WeightView& rows) const;

 private:
  struct Cut {
    size_t first_piece = 0;   // of the region
    int32_t tiles = 0;        // of a matrix
    int32_t piece_tiles = 0;  // of a piece but the last of a matrix
  };
  void cut(size_t region_index, const FillPlan& plan, uint64_t slot_bytes);

  const ArenaLayout& layout_;
  std::vector<Cut> cuts_;  // [regions]
  std::vector<TilePiece> pieces_;
};

}  // namespace warproll
