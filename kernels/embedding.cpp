#include "kernels/embedding.h"

#include <string>

#include "kernels/check.h"
#include "kernels/dequantise.h"
#include "kernels/rounding.h"
#include "kernels/weight_rows.h"

namespace warproll {

void embedding_cpu(const EmbeddingParams& p) {
  check_weight_view(p.weight, "embedding");
  check_activation_dtype(p.round_to, "embedding");
  check_argument(p.num_tokens >= 0, [&] {
    return "embedding: num_tokens is " + std::to_string(p.num_tokens) + ", wanted >= 0";
  });
  check_argument(p.num_tokens == 0 || (p.token_ids != nullptr && p.y != nullptr),
                 [] { return std::string("embedding: a pointer is null"); });
  const int64_t hidden_size = p.weight.cols;
  for (int32_t t = 0; t < p.num_tokens; ++t) {
    check_argument(p.token_ids[t] >= 0 && p.token_ids[t] < p.weight.rows, [&] {
      return "embedding: token id at " + std::to_string(t) + " is " +
             std::to_string(p.token_ids[t]) + ", wanted 0 .. " + std::to_string(p.weight.rows - 1);
    });
    dequantise_row(p.weight, p.token_ids[t], 0, p.weight.cols, p.y + t * hidden_size);
  }
  round_activations(p.y, p.num_tokens * hidden_size, p.round_to);
}

}  // namespace warproll
