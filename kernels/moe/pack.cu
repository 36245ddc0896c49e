// pack_elements, pack_scales: grid num_pack_ctas(), block 256 threads (pack_half_tile.cuh).
#include "kernels/moe/pack.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/moe/pack_half_tile.cuh"

namespace warproll {
namespace {

template <bool kScales>
__global__ void __launch_bounds__(kPackWarps * 32) pack_kernel(WeightView rows, TileTarget to) {
  pack_half_tiles(rows, to, static_cast<int>(blockIdx.x), kScales);
}

template <bool kScales>
void launch(const WeightView& rows, const TileTarget& to, cudaStream_t stream) {
  check_pack(rows, to);
  const int64_t ctas = num_pack_ctas(rows, kScales);
  if (ctas == 0 || packs_nothing(to, kScales)) return;
  LaunchConfig config(dim3(static_cast<unsigned>(ctas)), kPackWarps * 32, 0, stream);
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
