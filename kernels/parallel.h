// parallel_ranges: the kernels' one use of OpenMP, and the limit on its threads. Splits
// [0, count) into contiguous ranges, one a thread. An op may use it only over outputs that are
// independent, so the thread count never touches a result's bits. Thread: blocks until all ranges
// are done.
#pragma once

#include <cstdint>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace warproll {

// Multiply-adds from which a fork and join (5 us, more on a busy machine) is surely paid back.
inline constexpr int64_t kMinParallelWork = 1 << 20;

// Threads that ops called from this thread may use; set for this thread alone, count >= 1. Where
// several processes share a machine give each fewer than its cores: a join waits for the slowest.
inline int kernel_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}
inline void set_kernel_threads(int count) {
#ifdef _OPENMP
  omp_set_num_threads(count);
#else
  static_cast<void>(count);
#endif
}

// `body(begin, end)` must not throw. `work`: multiply-adds of the whole loop.
template <typename Body>
void parallel_ranges(int64_t count, int64_t work, const Body& body) {
#ifdef _OPENMP
  if (count > 1 && work >= kMinParallelWork && omp_get_max_threads() > 1 && !omp_in_parallel()) {
#pragma omp parallel
    {
      const int64_t threads = omp_get_num_threads();
      const int64_t index = omp_get_thread_num();
      const int64_t begin = count * index / threads;
      const int64_t end = count * (index + 1) / threads;
      if (begin < end) body(begin, end);
    }
    return;
  }
#endif
  static_cast<void>(work);
  if (count > 0) body(0, count);
}

}  // namespace warproll
