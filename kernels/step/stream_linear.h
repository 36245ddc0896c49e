// stream_linear: y = x W^T on a GPU for the few tokens of a decode step, where reading W is all the
// work. W lies as tiles of one "expert" (kernels/moe/tiles.h: down_tiles, pack_down), exact in F16 for
// BF16, MXFP8 and block-FP8 checkpoints.
//
// W is under way before the previous kernel has ended, and the next kernel may start as soon as the
// last of W is asked for. So W must have been complete before anything that may still run: after
// writing it, synchronise, or launch something without programmatic dependent launch.
//
// x is F16 in tile order with a scale a token, as add_rmsnorm and convert_activations write it, or the
// BF16 rows themselves: then it becomes F16 in registers, divided by a power of two where a row reaches
// 2^15, so a BF16 value is exact in it either way (down to 2^-24 of 2^15 or of the largest).
//
// Or x is the norm of a residual stream (residual_norm.h), for one or two tokens of 2048 columns: what
// add_rmsnorm's normed_tile would be, without a kernel for it. Every CTA computes it, one writes
// hidden_out.
//
// The order of every sum depends on the columns alone: two halves of the columns; in each, block b of
// 32 belongs to chain b mod 8; chains 0 .. 3 and 4 .. 7 are added in order, then these two, then the
// halves. A token's bits depend on its row alone, the same for every T: batch-invariant. Any T: tokens
// go in groups of up to 64, and W is read again for every group when an SM's share of it does not fit
// its shared memory. step_linear (linear.h) has other bits; it is faster for lm_head from about 40 tokens
// on, for QKV and O above 256 (docs/benchmarks/step.md).
// One kernel; no host synchronisation, no allocation; can be captured. Tolerance to F64:
// 2e-6 * sum |w x|, and y's rounding.
// Thread: any, one stream. Errors: std::invalid_argument, CudaError.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/moe/tiles.h"
#include "kernels/moe/warp_decode.h"
#include "kernels/step/residual_norm.h"

namespace warproll {

struct StreamLinearParams {
  TileActivations x;                 // [T, weight.cols]; values null: x_bf16, or norm
  const uint16_t* x_bf16 = nullptr;  // BF16 [T, weight.cols], 16-byte aligned
  ResidualNorm norm = {};            // hidden null: x or x_bf16. Only where stream_linear_can_norm
  TileMatrix weight;                 // one expert, rows / 16 tiles
  uint16_t* y = nullptr;             // BF16 [T, rows], 8-byte aligned
  float* y_f32 = nullptr;  // [T, rows], 16-byte aligned; written instead of y when not null
  int32_t num_tokens = 0;  // T, 0 .. 8192; 0 is a no-op
};
[[nodiscard]] bool stream_linear_can_norm(int32_t num_tokens, const TileMatrix& weight);
void stream_linear(const StreamLinearParams& params, cudaStream_t stream);

}  // namespace warproll
