// gather_rows: y[n] = x[rows[n]], for the tokens of a step whose logits are wanted. Waits for the
// previous kernel before it reads anything; programmatic dependent launch; can be captured.
// Thread: any, one stream. Errors: std::invalid_argument (shapes), CudaError.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"

namespace warproll {

struct GatherRowsParams {
  const uint16_t* x = nullptr;    // 16-bit values [.., width], 16-byte aligned
  const int32_t* rows = nullptr;  // [N], inside x: the caller's promise
  uint16_t* y = nullptr;          // [N, width], 16-byte aligned
  int32_t num_rows = 0;           // N >= 0; 0 is a no-op
  int32_t width = 0;              // multiple of 8
};
void gather_rows(const GatherRowsParams& params, cudaStream_t stream);

}  // namespace warproll
