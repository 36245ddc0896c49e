// The kernels of warp_decode and what they agree on. Internal to kernels/moe/*.cu.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/moe/warp_decode.h"

namespace warproll::moe {

inline constexpr float kHiddenScale = 1.0f / 64;  // of h in F16: range 4.2e6

// Shared memory of the rings. More is not faster: what is left of an SM is its L1, which keeps
// activations.
inline constexpr int kGateUpRingBytes = 68 * 1024;
inline constexpr int kDownRingBytes = 102 * 1024;

// Tiny batches: down_small's CTAs start while gate_up's still run, and have their weights on the way
// when h is done. So both have to fit an SM: 60 + 161 KB of shared memory, and in a quarter of the SM
// three warps of one and four of the other in 512 registers a lane.
inline constexpr int kGateUpSmallRingBytes = 51 * 1024;
inline constexpr int kMaxSmallPairs = 16;
inline constexpr int kGateUpSmallRegisters = 80;
inline constexpr int kDownSmallRegisters = (512 - 3 * kGateUpSmallRegisters) / 4 / 8 * 8;

void launch_gate_up(const WarpDecodeParams& params, cudaStream_t stream);
void launch_down(const WarpDecodeParams& params, cudaStream_t stream);
void launch_combine(const WarpDecodeParams& params, cudaStream_t stream);
// Whether down_small does this batch: it knows few shapes.
[[nodiscard]] bool down_is_small(const WarpDecodeParams& params);
void launch_down_small(const WarpDecodeParams& params, cudaStream_t stream);

}  // namespace warproll::moe
