#include "weights_sync/tile_pieces.h"

#include <algorithm>
#include <numeric>

namespace warproll {
namespace {

// Tiles by which a matrix may be cut: of block FP8 a cut must not part rows that share a scale. 0: not at
// all, since a tensor starts within a block.
int32_t tiles_between_cuts(const TileRegion& region, size_t index, const FillPlan& plan) {
  if (region.format != WeightFormat::kFp8Block) return 1;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (!tensor.tiles || tensor.tiles->region != index) continue;
    if (tensor.tiles->first_row % region.block_rows != 0) return 0;
  }
  const int32_t tile_rows = region.gate_up ? kTileRows / 2 : kTileRows;
  const int32_t gate_rows = region.gate_up ? region.rows / 2 : 0;
  if (gate_rows % region.block_rows != 0) return 0;
  return std::lcm(tile_rows, region.block_rows) / tile_rows;
}

}  // namespace

TilePieces::TilePieces(const ArenaLayout& layout, const FillPlan& plan, uint64_t slot_bytes)
    : layout_(layout) {
  for (size_t r = 0; r < layout.tile_regions.size(); ++r) cut(r, plan, slot_bytes);
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.kind == PlannedTensor::Kind::kAlias || !tensor.tiles) continue;
    const WeightView rows = rows_of(layout.tile_regions[tensor.tiles->region], *tensor.tiles);
    for (const TilePart& part : parts_of(*tensor.tiles, rows)) ++pieces_[part.piece].num_parts;
  }
}

void TilePieces::cut(size_t region_index, const FillPlan& plan, uint64_t slot_bytes) {
  const TileRegion& region = layout_.tile_regions[region_index];
  const TileMatrix tiles = tile_matrix(region, nullptr);
  const auto record_bytes = static_cast<uint64_t>(tiles.record_bytes());
  const auto fit = static_cast<int32_t>(std::min<uint64_t>(
      slot_bytes / (record_bytes + kRowScaleBytes), static_cast<uint64_t>(tiles.num_tiles)));
  Cut cut = {pieces_.size(), tiles.num_tiles, tiles.num_tiles};
  const int32_t unit = tiles_between_cuts(region, region_index, plan);
  if (fit < tiles.num_tiles && unit > 0 && fit >= unit) cut.piece_tiles = fit / unit * unit;
  for (int32_t m = 0; m < region.num_matrices; ++m) {
    for (int32_t first = 0; first < cut.tiles; first += cut.piece_tiles) {
      TilePiece piece = {.region = region_index, .matrix = m, .first_tile = first};
      piece.num_tiles = std::min(cut.piece_tiles, cut.tiles - first);
      piece.fits = piece.num_tiles <= fit;
      const auto record = static_cast<uint64_t>(int64_t{m} * cut.tiles + first);
      const auto count = static_cast<uint64_t>(piece.num_tiles);
      piece.records_at = region.offset_bytes + record * record_bytes;
      piece.records_bytes = count * record_bytes;
      piece.row_scales_at = region.offset_bytes +
                            static_cast<uint64_t>(tiles.num_records()) * record_bytes +
                            record * kRowScaleBytes;
      piece.row_scales_bytes = count * kRowScaleBytes;
      pieces_.push_back(piece);
    }
  }
  cuts_.push_back(cut);
}

std::vector<TilePart> TilePieces::parts_of(const PlannedTiles& tiles,
                                           const WeightView& rows) const {
  const TileRegion& region = layout_.tile_regions[tiles.region];
  const Cut& cut = cuts_[tiles.region];
  const TileMatrix matrix = tile_matrix(region, nullptr);
  const int32_t tile_rows = region.gate_up ? kTileRows / 2 : kTileRows;
  const int32_t pieces_each = (cut.tiles + cut.piece_tiles - 1) / cut.piece_tiles;
  std::vector<TilePart> parts;
  for (int32_t m = 0; m < tiles.num_matrices; ++m) {
    const int32_t end = tiles.first_row + tiles.rows;
    for (int32_t row = tiles.first_row; row < end;) {
      // Of gate_up, up rows count from the end of the gate rows, in the matrix as in the piece.
      const int32_t up_from = region.gate_up && row >= region.rows / 2 ? region.rows / 2 : 0;
      const int32_t nth = (row - up_from) / tile_rows / cut.piece_tiles;
      const auto at =
          cut.first_piece +
          static_cast<size_t>(tiles.first_matrix + m) * static_cast<size_t>(pieces_each) +
          static_cast<size_t>(nth);
      const TilePiece& piece = pieces_[at];
      const int32_t piece_begin = up_from + piece.first_tile * tile_rows;
      const int32_t piece_end = piece_begin + piece.num_tiles * tile_rows;
      const int32_t stop = pieces_each == 1 ? end : std::min(end, piece_end);
      TilePart part;
      part.piece = at;
      part.rows = rows.matrix(m).slice_rows(row - tiles.first_row, stop - row);
      part.to_arena = {.tiles = matrix,
                       .gate_up = region.gate_up,
                       .first_matrix = tiles.first_matrix + m,
                       .first_row = row};
      part.to_slot = {.tiles = matrix, .gate_up = region.gate_up};
      part.to_slot.tiles.num_experts = 1;
      part.to_slot.tiles.num_tiles = piece.num_tiles;
      part.to_slot.first_row = row - piece_begin + (up_from > 0 ? piece.num_tiles * tile_rows : 0);
      parts.push_back(part);
      row = stop;
    }
  }
  return parts;
}

}  // namespace warproll
