#include "kernels/moe/tiles.h"

#include <string>

#include "kernels/check.h"
#include "kernels/dtype.h"
#include "kernels/moe/pack_tile.h"
#include "kernels/parallel.h"
#include "kernels/weight_rows.h"

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

void pack(const TileSource& source, const TileMatrix& tiles, std::byte* out) {
  const int64_t records = int64_t{tiles.num_experts} * tiles.num_tiles;
  parallel_ranges(records, records * kTileRows * tiles.cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto expert = static_cast<int32_t>(i / tiles.num_tiles);
      const auto tile = static_cast<int32_t>(i % tiles.num_tiles);
      std::byte* at = out + i * tiles.record_bytes();
      int32_t exponents[kTileRows];
      for (int32_t r = 0; r < kTileRows; ++r) {
        exponents[r] =
            row_exponent(r < 8 ? source.low : source.high, expert, source_row(source, tile, r));
      }
      for (int32_t block = 0; block < tiles.num_blocks(); ++block) {
        std::byte* block_at = at + block * tile_block_bytes(tiles.format);
        for (int32_t lane = 0; lane < 32; ++lane) {
          pack_lane(source, expert, tile, block, lane, exponents, block_at);
        }
        for (int32_t g = 0; g < 8 && tiles.format != TileFormat::kF16; ++g) {
          pack_scales(source, expert, tile, block, g, exponents, block_at + 512);
        }
      }
      auto* scales =
          reinterpret_cast<uint16_t*>(out + records * tiles.record_bytes()) + i * kTileRows;
      for (int32_t r = 0; r < kTileRows; ++r) {
        scales[r] = row_scale_bits(r < 8 ? source.low : source.high, exponents[r]);
      }
    }
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

void pack_gate_up_cpu(const WeightView& gate, const WeightView& up, std::byte* out) {
  pack({gate, up, true}, gate_up_tiles(gate, up), out);
}

void pack_down_cpu(const WeightView& down, std::byte* out) {
  pack({down, down, false}, down_tiles(down), out);
}

}  // namespace warproll
