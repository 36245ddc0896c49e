#include "kernels/residual_add.h"

#include <string>

#include "kernels/check.h"
#include "kernels/rounding.h"

namespace warproll {

void residual_add_cpu(const ResidualAddParams& p) {
  check_activation_dtype(p.round_to, "residual_add");
  check_argument(p.count >= 0 && (p.count == 0 || (p.x != nullptr && p.y != nullptr)), [&] {
    return "residual_add: count is " + std::to_string(p.count) +
           ", wanted >= 0 and pointers that are not null";
  });
  for (int64_t i = 0; i < p.count; ++i) p.x[i] += p.y[i];
  round_activations(p.x, p.count, p.round_to);
}

}  // namespace warproll
