// The body of pack_elements and pack_scales: what one CTA does for a half tile, 8 rows of a matrix. 256
// threads: a warp finds a row's exponent where one is needed, then the warps write blocks of 32 columns.
// Internal to kernels/*.cu.
#pragma once

#include "kernels/moe/pack.h"
#include "kernels/moe/pack_tile.h"

namespace warproll {

inline constexpr int kPackWarps = 8;  // one for each row of a half tile

inline int64_t num_half_tiles(const WeightView& rows) {
  return int64_t{rows.num_matrices} * (rows.rows / 8);
}
// F16 tiles have no scales of their own.
inline bool packs_nothing(const TileTarget& to, bool scales) {
  return scales && to.tiles.format == TileFormat::kF16;
}

// Half tile `half_index` of all matrices; its elements, or its scales.
__device__ __forceinline__ void pack_half_tile(const WeightView& rows, const TileTarget& to,
                                               int half_index, bool writes_scales) {
  __shared__ int exponents[kPackWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int halves = rows.rows / 8;
  const int matrix = half_index / halves;
  const int row = half_index % halves * 8;
  const HalfTile at = half_tile(to.first_row + row, to.gate_up, to.tiles.num_tiles);
  const int64_t record = int64_t{to.first_matrix + matrix} * to.tiles.num_tiles + at.tile;
  const bool writes_row_scales = writes_scales || to.tiles.format == TileFormat::kF16;
  if (writes_row_scales) {
    const int mine = row_exponent(rows, matrix, row + warp, lane, 32);
    const int largest = __reduce_max_sync(~0u, mine);
    if (lane == 0) exponents[warp] = largest;
    __syncthreads();
  }
  std::byte* out = to.out + record * to.tiles.record_bytes();
  const int block_bytes = tile_block_bytes(to.tiles.format);
  const int blocks = to.tiles.num_blocks();
  if (writes_scales) {
    const int g = static_cast<int>(threadIdx.x) % 8;
    for (int block = static_cast<int>(threadIdx.x) / 8; block < blocks; block += kPackWarps * 4) {
      pack_scale(rows, matrix, row, block, g, at.half, exponents[g],
                 out + block * block_bytes + 512);
    }
  } else {
    const int exponent = writes_row_scales ? exponents[lane / 4] : 0;
    for (int block = warp; block < blocks; block += kPackWarps) {
      pack_lane(rows, matrix, row, block, lane, at.half, exponent, out + block * block_bytes);
    }
  }
  if (writes_row_scales && threadIdx.x < 8) {
    auto* scales = reinterpret_cast<uint16_t*>(
        to.out + to.tiles.num_records() * to.tiles.record_bytes() + record * kRowScaleBytes);
    scales[at.half * 8 + threadIdx.x] = row_scale_bits(rows.format, exponents[threadIdx.x]);
  }
}

}  // namespace warproll
