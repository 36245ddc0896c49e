#include "kernels/moe/pack.h"

#include <string>

#include "kernels/check.h"
#include "kernels/dtype.h"
#include "kernels/moe/pack_tile.h"
#include "kernels/parallel.h"

namespace warproll {
namespace {

// `half(matrix, row, record, half)` for every half tile of the view.
template <typename Body>
void for_each_half(const WeightView& rows, const TileTarget& to, const Body& body) {
  const int64_t halves = int64_t{rows.num_matrices} * (rows.rows / 8);
  parallel_ranges(halves, halves * 8 * rows.cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto matrix = static_cast<int32_t>(i / (rows.rows / 8));
      const auto row = static_cast<int32_t>(i % (rows.rows / 8)) * 8;
      const HalfTile at = half_tile(to.first_row + row, to.gate_up, to.tiles.num_tiles);
      body(matrix, row, int64_t{to.first_matrix + matrix} * to.tiles.num_tiles + at.tile, at.half);
    }
  });
}

void write_row_scales(const TileTarget& to, WeightFormat format, int64_t record, int32_t half,
                      const int32_t* exponents) {
  std::byte* at = to.out + to.tiles.num_records() * to.tiles.record_bytes() +
                  record * kRowScaleBytes + half * 16;
  for (int32_t g = 0; g < 8; ++g) {
    const uint16_t bits = row_scale_bits(format, exponents[g]);
    std::memcpy(at + g * 2, &bits, 2);
  }
}

}  // namespace

void check_pack(const WeightView& rows, const TileTarget& to) {
  const int64_t matrix_rows = int64_t{to.tiles.num_tiles} * kTileRows;
  check_argument(rows.rows >= 0 && rows.rows % 8 == 0 && to.first_row >= 0 &&
                     to.first_row % 8 == 0 && to.first_row + int64_t{rows.rows} <= matrix_rows &&
                     rows.num_matrices >= 0 && to.first_matrix >= 0 &&
                     to.first_matrix + int64_t{rows.num_matrices} <= to.tiles.num_experts,
                 [&] {
                   return "pack: rows [" + std::to_string(to.first_row) + ", +" +
                          std::to_string(rows.rows) + ") of matrices [" +
                          std::to_string(to.first_matrix) + ", +" +
                          std::to_string(rows.num_matrices) + "), wanted multiples of 8 within " +
                          std::to_string(to.tiles.num_experts) + " matrices of " +
                          std::to_string(matrix_rows) + " rows";
                 });
  check_argument(rows.cols == to.tiles.cols && rows.cols % kTileBlock == 0, [&] {
    return "pack: " + std::to_string(rows.cols) + " columns, wanted the tiles' " +
           std::to_string(to.tiles.cols) + ", a multiple of 32";
  });
  check_argument(tile_format_of(rows.format) == to.tiles.format, [&] {
    return "pack: weights of format " + std::to_string(static_cast<int>(rows.format)) +
           ", the tiles are of another";
  });
  check_argument(rows.format != WeightFormat::kFp8Block ||
                     (rows.block_rows % 8 == 0 && rows.block_cols % kTileBlock == 0 &&
                      rows.block_rows > 0 && rows.block_cols > 0),
                 [&] {
                   return "pack: FP8 blocks of [" + std::to_string(rows.block_rows) + ", " +
                          std::to_string(rows.block_cols) + "], wanted multiples of 8 and 32";
                 });
}

void pack_elements_cpu(const WeightView& rows, const TileTarget& to) {
  check_pack(rows, to);
  const bool has_scales = to.tiles.format != TileFormat::kF16;
  for_each_half(rows, to, [&](int32_t matrix, int32_t row, int64_t record, int32_t half) {
    int32_t exponents[8] = {};
    for (int32_t g = 0; g < 8 && !has_scales; ++g) {
      exponents[g] = row_exponent(rows, matrix, row + g, 0, 1);
    }
    std::byte* at = to.out + record * to.tiles.record_bytes();
    for (int32_t block = 0; block < to.tiles.num_blocks(); ++block) {
      for (int32_t lane = 0; lane < 32; ++lane) {
        pack_lane(rows, matrix, row, block, lane, half, exponents[lane / 4],
                  at + block * tile_block_bytes(to.tiles.format));
      }
    }
    if (!has_scales) write_row_scales(to, rows.format, record, half, exponents);
  });
}

void pack_scales_cpu(const WeightView& rows, const TileTarget& to) {
  check_pack(rows, to);
  if (to.tiles.format == TileFormat::kF16) return;
  for_each_half(rows, to, [&](int32_t matrix, int32_t row, int64_t record, int32_t half) {
    int32_t exponents[8];
    for (int32_t g = 0; g < 8; ++g) exponents[g] = row_exponent(rows, matrix, row + g, 0, 1);
    std::byte* at = to.out + record * to.tiles.record_bytes() + 512;
    for (int32_t block = 0; block < to.tiles.num_blocks(); ++block) {
      for (int32_t g = 0; g < 8; ++g) {
        pack_scale(rows, matrix, row, block, g, half, exponents[g],
                   at + block * tile_block_bytes(to.tiles.format));
      }
    }
    write_row_scales(to, rows.format, record, half, exponents);
  });
}

void pack_gate_up_cpu(const WeightView& gate, const WeightView& up, std::byte* out) {
  TileTarget to = {.tiles = gate_up_tiles(gate, up), .out = out, .gate_up = true};
  pack_elements_cpu(gate, to);
  pack_scales_cpu(gate, to);
  to.first_row = gate.rows;
  pack_elements_cpu(up, to);
  pack_scales_cpu(up, to);
}

void pack_down_cpu(const WeightView& down, std::byte* out) {
  const TileTarget to = {.tiles = down_tiles(down), .out = out};
  pack_elements_cpu(down, to);
  pack_scales_cpu(down, to);
}

TileMatrix tile_matrix(const TileRegion& region, const std::byte* arena) {
  return {.format = tile_format_of(region.format),
          .data = arena == nullptr ? nullptr : arena + region.offset_bytes,
          .num_experts = region.num_matrices,
          .num_tiles = region.rows / kTileRows,
          .cols = region.cols};
}

}  // namespace warproll
