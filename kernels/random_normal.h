// random_normal: BF16 values of N(0, sigma), element i of stream `stream_id` from Philox with the key
// `seed` and the counter (i / 4, stream_id), by Box and Muller. For weights made without files.
// Element i does not depend on where a call begins. log and cos are the GPU's: another kind of machine
// may round a value differently. Thread: any, one stream. Errors: std::invalid_argument, CudaError.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"

namespace warproll {

struct RandomNormalParams {
  uint16_t* out = nullptr;   // BF16 [count], device
  uint64_t first_index = 0;  // of out[0]; multiple of 4
  uint64_t count = 0;
  uint64_t seed = 0;
  uint64_t stream_id = 0;
  float mean = 0.0f;
  float sigma = 1.0f;  // 0: every value is the mean
};
void random_normal(const RandomNormalParams& params, cudaStream_t stream);

}  // namespace warproll
