// cluster_linear: y = x W^T on a GPU for the dozens of tokens of a large decode batch, where
// stream_linear (stream_linear.h) waits for x from L2 and for the sums of its warps. W lies as kF16
// tiles of one "expert" (kernels/moe/tiles.h), and is under way before the previous kernel has ended:
// what stream_linear.h says of that holds here.
//
// x is F16 in tile order with a scale a token, over 2048 columns, or BF16 rows, over 4096; these become
// F16, divided by a power of two where a token's share of the columns reaches 2^15: exact either way.
//
// The columns are shared out to the CTAs of a cluster. Each keeps its share of x in shared memory. Four
// warps multiply 64 rows of W with all tokens (wgmma; mma.sync where there is none), and the CTAs'
// sums are added through distributed shared memory, each CTA those of some of the tokens.
//
// The order of every sum depends on the columns alone, so a token's bits depend on its row alone and are
// the same for every T. They are not stream_linear's, and not the same on sm_90a and elsewhere. Any T:
// a launch for every 64 tokens, which reads W again.
// No host synchronisation, no allocation; can be captured. Tolerance to F64: 2e-6 * sum |w x|, and y's
// rounding.
// Thread: any, one stream. Errors: std::invalid_argument, CudaError.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/moe/tiles.h"
#include "kernels/moe/warp_decode.h"

namespace warproll {

struct ClusterLinearParams {
  TileActivations x;                 // [T, weight.cols]; values null: x_bf16
  const uint16_t* x_bf16 = nullptr;  // BF16 [T, weight.cols], 16-byte aligned
  TileMatrix weight;                 // one expert, rows / 16 tiles; can_cluster_linear
  uint16_t* y = nullptr;             // BF16 [T, rows], 4-byte aligned
  float* y_f32 = nullptr;            // [T, rows]; written instead of y when not null
  int32_t num_tokens = 0;            // T, 0 .. 8192; 0 is a no-op
};
// kF16 tiles, and the columns named above.
[[nodiscard]] bool can_cluster_linear(const TileMatrix& weight, bool x_is_tiles);
// Than stream_linear and step_linear, as measured on an H200 (docs/benchmarks/step.md).
[[nodiscard]] bool cluster_linear_is_faster(int32_t num_tokens, const TileMatrix& weight,
                                            bool x_is_tiles);
void cluster_linear(const ClusterLinearParams& params, cudaStream_t stream);

}  // namespace warproll
