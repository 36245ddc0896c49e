#include "kernels/threads.h"

#include <stdexcept>
#include <string>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace warproll {

void set_op_threads(int num_threads) {
  if (num_threads < 0) {
    throw std::invalid_argument("set_op_threads: num_threads is " + std::to_string(num_threads) +
                                ", wanted at least 0");
  }
#ifdef _OPENMP
  if (num_threads > 0) omp_set_num_threads(num_threads);
#endif
}

}  // namespace warproll
