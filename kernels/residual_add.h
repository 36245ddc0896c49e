// residual_add: x += y, element by element, rounded once, to round_to.
// Thread: pure function. Errors: std::invalid_argument.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace warproll {

struct ResidualAddParams {
  float* x = nullptr;        // [count], updated
  const float* y = nullptr;  // [count]
  int64_t count = 0;         // >= 0
  Dtype round_to = Dtype::kF32;
};
void residual_add_cpu(const ResidualAddParams& params);

}  // namespace warproll
