// pack_elements, pack_scales: grid one CTA a half tile (8 rows of a matrix), block 256 threads: a
// warp finds a row's exponent where one is needed, then the warps write blocks of 32 columns.
#include "kernels/moe/pack.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/moe/pack_tile.h"

namespace warproll {
namespace {

constexpr int kWarps = 8;  // one for each row of a half tile

template <bool kScales>
__global__ void __launch_bounds__(kWarps * 32) pack_kernel(WeightView rows, TileTarget to) {
  __shared__ int exponents[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int halves = rows.rows / 8;
  const int matrix = static_cast<int>(blockIdx.x) / halves;
  const int row = static_cast<int>(blockIdx.x) % halves * 8;
  const HalfTile at = half_tile(to.first_row + row, to.gate_up, to.tiles.num_tiles);
  const int64_t record = int64_t{to.first_matrix + matrix} * to.tiles.num_tiles + at.tile;
  const bool writes_row_scales = kScales || to.tiles.format == TileFormat::kF16;
  if (writes_row_scales) {
    const int mine = row_exponent(rows, matrix, row + warp, lane, 32);
    const int largest = __reduce_max_sync(~0u, mine);
    if (lane == 0) exponents[warp] = largest;
    __syncthreads();
  }
  std::byte* out = to.out + record * to.tiles.record_bytes();
  const int block_bytes = tile_block_bytes(to.tiles.format);
  const int blocks = to.tiles.num_blocks();
  if constexpr (kScales) {
    const int g = static_cast<int>(threadIdx.x) % 8;
    for (int block = static_cast<int>(threadIdx.x) / 8; block < blocks; block += kWarps * 4) {
      pack_scale(rows, matrix, row, block, g, at.half, exponents[g],
                 out + block * block_bytes + 512);
    }
  } else {
    const int exponent = writes_row_scales ? exponents[lane / 4] : 0;
    for (int block = warp; block < blocks; block += kWarps) {
      pack_lane(rows, matrix, row, block, lane, at.half, exponent, out + block * block_bytes);
    }
  }
  if (writes_row_scales && threadIdx.x < 8) {
    auto* scales = reinterpret_cast<uint16_t*>(
        to.out + to.tiles.num_records() * to.tiles.record_bytes() + record * kRowScaleBytes);
    scales[at.half * 8 + threadIdx.x] = row_scale_bits(rows.format, exponents[threadIdx.x]);
  }
}

template <bool kScales>
void launch(const WeightView& rows, const TileTarget& to, cudaStream_t stream) {
  check_pack(rows, to);
  const int64_t halves = int64_t{rows.num_matrices} * (rows.rows / 8);
  if (halves == 0 || (kScales && to.tiles.format == TileFormat::kF16)) return;
  LaunchConfig config(dim3(static_cast<unsigned>(halves)), kWarps * 32, 0, stream);
  config.run(pack_kernel<kScales>, rows, to);
}

}  // namespace

void pack_elements(const WeightView& rows, const TileTarget& to, cudaStream_t stream) {
  launch<false>(rows, to, stream);
}

void pack_scales(const WeightView& rows, const TileTarget& to, cudaStream_t stream) {
  launch<true>(rows, to, stream);
}

void pack_gate_up(const WeightView& gate, const WeightView& up, std::byte* out,
                  cudaStream_t stream) {
  TileTarget to = {.tiles = gate_up_tiles(gate, up), .out = out, .gate_up = true};
  pack_elements(gate, to, stream);
  pack_scales(gate, to, stream);
  to.first_row = gate.rows;
  pack_elements(up, to, stream);
  pack_scales(up, to, stream);
}

void pack_down(const WeightView& down, std::byte* out, cudaStream_t stream) {
  const TileTarget to = {.tiles = down_tiles(down), .out = out};
  pack_elements(down, to, stream);
  pack_scales(down, to, stream);
}

}  // namespace warproll
