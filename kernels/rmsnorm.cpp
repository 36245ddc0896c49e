#include "kernels/rmsnorm.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/check.h"
#include "kernels/lanes.h"
#include "kernels/parallel.h"
#include "kernels/rounding.h"
#include "kernels/weight_rows.h"

namespace warproll {
namespace {

constexpr int32_t kPieceSize = 256;  // weights converted at a time

WARPROLL_VECTOR_CLONES void scale_piece(const float* x, const float* w, float scale, int32_t size,
                                        float* y) {
  for (int32_t i = 0; i < size; ++i) y[i] = x[i] * scale * w[i];
}

WARPROLL_VECTOR_CLONES float sum_of_squares(const float* x, int32_t size) {
  return dot_lanes(x, x, size);
}

void check(const RmsNormParams& p) {
  check_activation_dtype(p.round_to, "rmsnorm");
  check_argument(p.num_rows >= 0 && p.row_size >= 1, [&] {
    return "rmsnorm: shape is [" + std::to_string(p.num_rows) + ", " + std::to_string(p.row_size) +
           "], wanted rows >= 0 and a row size >= 1";
  });
  check_argument(p.weight_dtype == Dtype::kF32 || p.weight_dtype == Dtype::kF16 ||
                     p.weight_dtype == Dtype::kBf16,
                 [&] {
                   return "rmsnorm: weight dtype is " + std::string(to_string(p.weight_dtype)) +
                          ", wanted F32, F16 or BF16";
                 });
  check_argument(p.num_rows == 0 || (p.x != nullptr && p.y != nullptr && p.weight != nullptr),
                 [] { return std::string("rmsnorm: a pointer is null"); });
}

}  // namespace

void rmsnorm_cpu(const RmsNormParams& p) {
  check(p);
  WeightView weight;
  weight.format = p.weight_dtype == Dtype::kF32   ? WeightFormat::kF32
                  : p.weight_dtype == Dtype::kF16 ? WeightFormat::kF16
                                                  : WeightFormat::kBf16;
  weight.data = p.weight;
  weight.rows = 1;
  weight.cols = p.row_size;
  parallel_ranges(p.num_rows, p.num_rows * p.row_size, [&](int64_t begin, int64_t end) {
    float w[kPieceSize];
    for (int64_t row = begin; row < end; ++row) {
      const float* x = p.x + row * p.row_size;
      float* y = p.y + row * p.row_size;
      const float mean = sum_of_squares(x, p.row_size) / static_cast<float>(p.row_size);
      const float scale = 1.0f / std::sqrt(mean + p.eps);
      for (int32_t at = 0; at < p.row_size; at += kPieceSize) {
        const int32_t size = std::min(kPieceSize, p.row_size - at);
        dequantise_row(weight, 0, at, size, w);
        scale_piece(x + at, w, scale, size, y + at);
      }
    }
    round_activations(p.y + begin * p.row_size, (end - begin) * p.row_size, p.round_to);
  });
}

}  // namespace warproll
