#include "kernels/step/residual_norm.h"

#include <string>

#include "kernels/check.h"
#include "kernels/step/vectors.cuh"

namespace warproll {

void check_residual_norm(const ResidualNorm& n, const char* op) {
  check_argument(n.weight != nullptr && n.hidden_out != n.hidden, [&] {
    return std::string(op) + ": a norm without a weight, or hidden_out is hidden";
  });
  check_argument(n.weight_dtype == Dtype::kBf16 || n.weight_dtype == Dtype::kF16 ||
                     n.weight_dtype == Dtype::kF32,
                 [&] {
                   return std::string(op) + ": norm dtype is " +
                          std::string(to_string(n.weight_dtype)) + ", wanted BF16, F16 or F32";
                 });
  check_argument(
      step::is_aligned(n.hidden) && step::is_aligned(n.addend) && step::is_aligned(n.hidden_out) &&
          step::is_aligned(n.weight),
      [&] { return std::string(op) + ": a pointer of the norm is not 16-byte aligned"; });
}

}  // namespace warproll
