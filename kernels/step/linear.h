// linear: y = x W^T on a GPU, every token with every row of W, for the projections and lm_head.
// W lies as tiles of one "expert" (kernels/moe/tiles.h: down_tiles, pack_down), exact in F16 for BF16,
// MXFP8 and block-FP8 checkpoints. x becomes F16 on the way, divided by a power of two per token; a
// BF16 value is exact in it. F32 sums in the order of the columns, y rounded once or not at all.
// A token's bits depend on its own row alone: the same for every T, so batch-invariant.
// Two kernels: x to F16, and the grouped product of the expert-centric MoE path with one group. For a
// few tokens and a small W it leaves SMs idle (128 rows a CTA). No host synchronisation, no
// allocation; can be captured. Tolerance to F64: 2e-6 * sum |w x|, and y's rounding.
// Thread: any, one stream. Errors: std::invalid_argument, CudaError.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/moe/tiles.h"

namespace warproll {

struct StepLinearParams {
  const uint16_t* x = nullptr;     // BF16 [T, weight.cols]
  TileMatrix weight;               // one expert, rows / 16 tiles
  std::byte* workspace = nullptr;  // step_linear_workspace_bytes(), 256-byte aligned
  size_t workspace_bytes = 0;
  uint16_t* y = nullptr;   // BF16 [T, rows]
  float* y_f32 = nullptr;  // [T, rows], written instead of y when not null
  int32_t num_tokens = 0;  // T, 0 .. 8192; 0 is a no-op
};
[[nodiscard]] size_t step_linear_workspace_bytes(int32_t num_tokens, int32_t cols);
void step_linear(const StepLinearParams& params, cudaStream_t stream);

}  // namespace warproll
