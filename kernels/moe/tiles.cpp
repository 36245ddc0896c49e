#include "kernels/moe/tiles.h"

#include <string>

#include "kernels/check.h"

namespace warproll {
namespace {

void check_cols(const WeightView& w, const char* what) {
  check_argument(w.cols % kTileBlock == 0 && w.cols > 0, [&] {
    return std::string(what) + ": " + std::to_string(w.cols) + " columns, wanted a multiple of " +
           std::to_string(kTileBlock);
  });
  check_argument(
      w.format != WeightFormat::kFp8Block || (w.block_rows == 128 && w.block_cols == 128), [&] {
        return std::string(what) + ": FP8 blocks of [" + std::to_string(w.block_rows) + ", " +
               std::to_string(w.block_cols) + "], wanted [128, 128]";
      });
}

}  // namespace

TileFormat tile_format_of(WeightFormat format) {
  check_argument(format != WeightFormat::kF32, [] {
    return std::string("MoE tiles: F32 expert weights, wanted BF16, F16, MXFP8 or block FP8");
  });
  if (format == WeightFormat::kMxfp8) return TileFormat::kMxfp8;
  return format == WeightFormat::kFp8Block ? TileFormat::kFp8Block : TileFormat::kF16;
}

TileMatrix gate_up_tiles(const WeightView& gate, const WeightView& up) {
  check_cols(gate, "gate tiles");
  check_cols(up, "up tiles");
  check_argument(gate.rows % 8 == 0 && gate.rows == up.rows && gate.cols == up.cols &&
                     gate.format == up.format && gate.num_matrices == up.num_matrices,
                 [&] {
                   return "gate_up tiles: gate [" + std::to_string(gate.rows) + ", " +
                          std::to_string(gate.cols) + "], up [" + std::to_string(up.rows) + ", " +
                          std::to_string(up.cols) +
                          "]; wanted equal shapes and formats, rows a multiple of 8";
                 });
  return {tile_format_of(gate.format), nullptr, gate.num_matrices, gate.rows / 8, gate.cols};
}

TileMatrix down_tiles(const WeightView& down) {
  check_cols(down, "down tiles");
  check_argument(down.rows % kTileRows == 0, [&] {
    return "down tiles: " + std::to_string(down.rows) + " rows, wanted a multiple of " +
           std::to_string(kTileRows);
  });
  return {tile_format_of(down.format), nullptr, down.num_matrices, down.rows / kTileRows,
          down.cols};
}

}  // namespace warproll
