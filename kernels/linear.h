// linear: y = x W^T, every row of x by every row of W, rounded once, to round_to.
// Each weight row is read from memory once for all tokens. A sum's order depends on cols alone
// (16 lanes, fixed tree), so y[t] has the same bits whatever T, its neighbours or the threads.
// Tolerance to F64: 1e-6 * sum |w x|. Thread: pure function; OpenMP over W's rows.
// Errors: std::invalid_argument.
#pragma once

#include <cstdint>

#include "kernels/weight.h"

namespace warproll {

struct LinearParams {
  const float* x = nullptr;  // [T, weight.cols]
  WeightView weight;         // [rows, cols], any format, one matrix
  float* y = nullptr;        // [T, weight.rows], must not overlap x
  int32_t num_tokens = 0;    // T >= 0; 0 is a no-op
  Dtype round_to = Dtype::kF32;
};
void linear_cpu(const LinearParams& params);

}  // namespace warproll
