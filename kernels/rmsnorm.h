// rmsnorm: y = x / sqrt(mean(x^2) + eps) * w, per row, rounded once, to round_to. Rows are tokens
// (the layer norms) or the heads of tokens (q and k norm). Source: Zhang & Sennrich 2019, eq. 4.
// Sums run in 16 lanes: a row's bits depend on that row alone. Tolerance to F64: 1e-6 relative.
// Thread: pure function; OpenMP over rows. Errors: std::invalid_argument.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace warproll {

struct RmsNormParams {
  const float* x = nullptr;           // [R, N]
  const std::byte* weight = nullptr;  // [N]
  Dtype weight_dtype = Dtype::kBf16;  // kF32, kF16 or kBf16
  float* y = nullptr;                 // [R, N], may be x
  int64_t num_rows = 0;               // R >= 0; 0 is a no-op
  int32_t row_size = 0;               // N >= 1
  float eps = 1e-6f;
  Dtype round_to = Dtype::kF32;
};
void rmsnorm_cpu(const RmsNormParams& params);

}  // namespace warproll
