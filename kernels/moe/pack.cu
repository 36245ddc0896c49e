// pack: grid one CTA a record (expert, tile), block 128 threads: 16 of them find the rows'
// exponents, then a warp writes a block of 32 columns at a time.
#include "kernels/moe/pack.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/moe/pack_tile.h"

namespace warproll {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    pack_kernel(TileSource source, TileMatrix tiles, std::byte* out) {
  __shared__ int exponents[kTileRows];
  const int me = static_cast<int>(threadIdx.x);
  const auto expert = static_cast<int>(blockIdx.x) / tiles.num_tiles;
  const auto tile = static_cast<int>(blockIdx.x) % tiles.num_tiles;
  std::byte* record = out + static_cast<int64_t>(blockIdx.x) * tiles.record_bytes();
  const WeightView& w = me < 8 ? source.low : source.high;
  if (me < kTileRows) exponents[me] = row_exponent(w, expert, source_row(source, tile, me));
  __syncthreads();
  for (int block = me / 32; block < tiles.num_blocks(); block += kThreads / 32) {
    std::byte* at = record + block * tile_block_bytes(tiles.format);
    pack_lane(source, expert, tile, block, me % 32, exponents, at);
    if (tiles.format != TileFormat::kF16 && me % 32 < 8) {
      pack_scales(source, expert, tile, block, me % 32, exponents, at + 512);
    }
  }
  if (me < kTileRows) {
    auto* scales = reinterpret_cast<uint16_t*>(out + tiles.num_records() * tiles.record_bytes());
    scales[static_cast<int64_t>(blockIdx.x) * kTileRows + me] = row_scale_bits(w, exponents[me]);
  }
}

void launch(const TileSource& source, const TileMatrix& tiles, std::byte* out,
            cudaStream_t stream) {
  LaunchConfig config(dim3(static_cast<unsigned>(tiles.num_experts * tiles.num_tiles)), kThreads, 0,
                      stream);
  config.run(pack_kernel, source, tiles, out);
}

}  // namespace

void pack_gate_up(const WeightView& gate, const WeightView& up, std::byte* out,
                  cudaStream_t stream) {
  launch({gate, up, true}, gate_up_tiles(gate, up), out, stream);
}

void pack_down(const WeightView& down, std::byte* out, cudaStream_t stream) {
  launch({down, down, false}, down_tiles(down), out, stream);
}

}  // namespace warproll
