// pack: weights from a checkpoint's layout to tiles (tiles.h), on the device or by the CPU twins,
// which write the same bytes. At load time and on receive, not in a step.
// Every byte of a tile matrix belongs to one half tile (8 rows) and there to the elements or to the
// scales, so tensors may come in any order: gate before up or after, scales before elements.
// Thread: any, one stream. Errors: std::invalid_argument, CudaError.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/arena.h"
#include "kernels/cuda/stream.h"
#include "kernels/moe/tiles.h"

namespace warproll {

// Where the rows of a view go: row r of its matrix m is row first_row + r of matrix
// first_matrix + m of the tiles.
struct TileTarget {
  TileMatrix tiles;          // shape and format; data is not used
  std::byte* out = nullptr;  // tiles.bytes() bytes, 16-byte aligned
  bool gate_up = false;      // a matrix is gate rows, then as many up rows; a tile has 8 of each
  int32_t first_matrix = 0;
  int32_t first_row = 0;  // multiple of 8; of kFp8Block the view's scale blocks start here
};

// pack_elements reads rows.data (8-byte aligned), pack_scales rows.scales; rows.rows is a multiple of
// 8, the format (kF16, kBf16, kMxfp8, kFp8Block) that of the tiles. kF16 and kBf16 have no scales:
// pack_scales is a no-op there, and pack_elements writes the row scales.
void pack_elements(const WeightView& rows, const TileTarget& to, cudaStream_t stream);
void pack_scales(const WeightView& rows, const TileTarget& to, cudaStream_t stream);
void pack_elements_cpu(const WeightView& rows, const TileTarget& to);
void pack_scales_cpu(const WeightView& rows, const TileTarget& to);
void check_pack(const WeightView& rows, const TileTarget& to);  // throws what the others throw

// Elements and scales of whole matrices: gate | up, or down. The views and `out` (tiles.bytes(),
// 16-byte aligned) are device memory.
void pack_gate_up(const WeightView& gate, const WeightView& up, std::byte* out,
                  cudaStream_t stream);
void pack_down(const WeightView& down, std::byte* out, cudaStream_t stream);

// A region of an arena as the kernels read it. arena may be null: data is then null too.
TileMatrix tile_matrix(const TileRegion& region, const std::byte* arena);

}  // namespace warproll
