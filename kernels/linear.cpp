#include "kernels/linear.h"

#include <algorithm>
#include <string>

#include "kernels/check.h"
#include "kernels/dequantise.h"
#include "kernels/parallel.h"
#include "kernels/rounding.h"
#include "kernels/weight_rows.h"

namespace warproll {
namespace {

// Rows [row, row + row_count) for all tokens.
void row_tile(const LinearParams& p, int32_t row, int32_t row_count) {
  const float* x[kTokenTile];
  float* y[kTokenTile];
  for (int32_t first = 0; first < p.num_tokens; first += kTokenTile) {
    const int32_t count = std::min(kTokenTile, p.num_tokens - first);
    for (int32_t i = 0; i < count; ++i) {
      const int64_t t = first + i;
      x[i] = p.x + t * p.weight.cols;
      y[i] = p.y + t * p.weight.rows + row;
    }
    dot_rows(p.weight, row, row_count, x, count, y);
    if (p.round_to == Dtype::kF32) continue;
    for (int32_t i = 0; i < count; ++i) round_activations(y[i], row_count, p.round_to);
  }
}

}  // namespace

void linear_cpu(const LinearParams& p) {
  check_weight_view(p.weight, "linear");
  check_activation_dtype(p.round_to, "linear");
  check_argument(p.num_tokens >= 0 && p.weight.num_matrices == 1, [&] {
    return "linear: num_tokens is " + std::to_string(p.num_tokens) + " and the weight has " +
           std::to_string(p.weight.num_matrices) + " matrices, wanted >= 0 and 1";
  });
  check_argument(p.num_tokens == 0 || (p.x != nullptr && p.y != nullptr),
                 [] { return std::string("linear: a pointer is null"); });
  const int64_t tiles = (p.weight.rows + kRowTile - 1) / kRowTile;
  const int64_t work = int64_t{p.weight.rows} * p.weight.cols * p.num_tokens;
  parallel_ranges(tiles, work, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const auto row = static_cast<int32_t>(tile * kRowTile);
      row_tile(p, row, std::min(kRowTile, p.weight.rows - row));
    }
  });
}

}  // namespace warproll
