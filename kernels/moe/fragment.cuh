// A lane's sixteen bytes of an FP8 block as the A operands of two mma (tiles.h): a[0 .. 3] of the
// first, a[4 .. 7] of the second, row g at even places and row g + 8 at odd ones.
// Internal to kernels/moe/*.cuh.
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/moe/tiles.h"

namespace warproll::moe {

__device__ __forceinline__ void unpack_e4m3(uint4 w, uint32_t (&a)[8]) {
  ptx::e4m3x4_to_f16x2(w.x, a[0], a[2]);
  ptx::e4m3x4_to_f16x2(w.z, a[1], a[3]);
  ptx::e4m3x4_to_f16x2(w.y, a[4], a[6]);
  ptx::e4m3x4_to_f16x2(w.w, a[5], a[7]);
}

// Times the block's MXFP8 scales: the high bytes of row g's and row g + 8's F16 powers of two.
__device__ __forceinline__ void scale_rows_mxfp8(uint32_t scales, uint32_t (&a)[8]) {
  const uint32_t low = __byte_perm(scales, 0, 0x0404);  // a high byte into both halves
  const uint32_t high = __byte_perm(scales, 0, 0x1414);
#pragma unroll
  for (int j = 0; j < 8; ++j) a[j] = ptx::mul_f16x2(a[j], j % 2 == 0 ? low : high);
}

// The block at `at` (tiles.h) as the A operands of two products: a[0 .. 3] and a[4 .. 7], of each the
// even ones of row g, the odd ones of row g + 8. The scales of kFp8Block are not in it.
template <TileFormat kFormat>
__device__ __forceinline__ void load_block(const std::byte* at, uint32_t (&a)[8]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint4 w = *reinterpret_cast<const uint4*>(at + lane * 16);
  if constexpr (kFormat == TileFormat::kF16) {
    const uint4 w1 = *reinterpret_cast<const uint4*>(at + 512 + lane * 16);
    a[0] = w.x, a[1] = w.y, a[2] = w.z, a[3] = w.w;
    a[4] = w1.x, a[5] = w1.y, a[6] = w1.z, a[7] = w1.w;
  } else {
    unpack_e4m3(w, a);
  }
  if constexpr (kFormat == TileFormat::kMxfp8) {
    scale_rows_mxfp8(*reinterpret_cast<const uint16_t*>(at + 512 + lane / 4 * 2), a);
  }
}

}  // namespace warproll::moe
