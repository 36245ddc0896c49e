// pack_gate_up, pack_down: expert weights in device memory from a checkpoint's layout to tiles
// (tiles.h), byte for byte what pack_*_cpu write. At load time and on receive, not in a step.
// Thread: any, one stream. Errors: std::invalid_argument, CudaError.
#pragma once

#include "kernels/cuda/stream.h"
#include "kernels/moe/tiles.h"

namespace warproll {

// The views and `out` (tiles.bytes(), 16-byte aligned) are device memory.
void pack_gate_up(const WeightView& gate, const WeightView& up, std::byte* out,
                  cudaStream_t stream);
void pack_down(const WeightView& down, std::byte* out, cudaStream_t stream);

}  // namespace warproll
