// embedding: y[t] = W[token_ids[t]], rounded to round_to. A copy, exact in F32.
// Thread: pure function. Errors: std::invalid_argument (shape, null pointer, id out of range).
#pragma once

#include <cstdint>

#include "kernels/weight.h"

namespace warproll {

struct EmbeddingParams {
  const int32_t* token_ids = nullptr;  // [T], each in [0, V)
  WeightView weight;                   // [V, H], any format
  float* y = nullptr;                  // [T, H]
  int32_t num_tokens = 0;              // T >= 0; 0 is a no-op
  Dtype round_to = Dtype::kF32;
};
void embedding_cpu(const EmbeddingParams& params);

}  // namespace warproll
