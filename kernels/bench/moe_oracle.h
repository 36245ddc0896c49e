// moe_oracle: the layer in F64 on the device, straight from its definition and a checkpoint's
// layout, one thread block an output. The yardstick of GPU tests and of `bench moe --check`; shares
// no code with the kernels it judges. Blocking. Errors: CudaError.
#pragma once

#include <cstdint>

#include "kernels/weight.h"

namespace warproll {

// What a path gives up on the way: the published comparisons.
enum class OracleRounding : uint8_t {
  kNone,
  kBf16Hidden,        // the SwiGLU intermediate rounded to BF16
  kMxfp8Activations,  // x and the intermediate quantised to MXFP8
};

struct MoeOracleParams {
  const uint16_t* x = nullptr;          // BF16 [T, H]
  const int32_t* topk_ids = nullptr;    // [T, K]
  const float* topk_weights = nullptr;  // [T, K]
  WeightView gate, up, down;            // device memory
  double* y = nullptr;                  // [T, H]
  int32_t num_tokens = 0;
  int32_t top_k = 0;
  OracleRounding rounding = OracleRounding::kNone;
};
void moe_oracle(const MoeOracleParams& params);

}  // namespace warproll
