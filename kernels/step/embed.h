// embed: hidden[t] = W[token_ids[t]], rounded to BF16: the first op of a step on the device. Twin:
// embedding_cpu (kernels/embedding.h), the same bits. A token id comes from a kernel, so it is not
// refused but read as a row of zeros and counted.
// Waits for the previous kernel before it reads anything; programmatic dependent launch; no host
// synchronisation, can be captured.
// Thread: any, one stream. Errors: std::invalid_argument (shapes, formats), CudaError.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/weight.h"

namespace warproll {

struct EmbedParams {
  const int32_t* token_ids = nullptr;  // [T]; outside [0, V): a row of zeros
  int32_t token_stride = 1;            // between ids: those of SampledTokens, say
  WeightView weight;                   // [V, H], kBf16, kF16 or kF32; device, 16-byte aligned
  uint16_t* hidden = nullptr;          // BF16 [T, H], 16-byte aligned
  int32_t* num_invalid = nullptr;      // ids outside [0, V) are added to it; or null
  int32_t num_tokens = 0;              // T >= 0; 0 is a no-op. H is a multiple of 8
};
void embed(const EmbedParams& params, cudaStream_t stream);

}  // namespace warproll
