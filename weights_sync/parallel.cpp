#include "weights_sync/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace warproll {

void for_each_index(size_t count, int num_threads, const std::function<void(size_t)>& work,
                    const std::function<void()>& after_own) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;  // the first one
  const auto take = [&](bool is_caller) {
    try {
      for (size_t i = next++; i < count; i = next++) {
        work(i);
        if (is_caller && after_own) after_own();
      }
    } catch (...) {
      next = count;  // the others stop after what they hold
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  const size_t wanted =
      num_threads > 0 ? static_cast<size_t>(num_threads) : std::thread::hardware_concurrency();
  std::vector<std::jthread> others;
  while (others.size() + 1 < std::min(wanted, count)) others.emplace_back(take, false);
  take(true);
  others.clear();  // joins
  if (failure) std::rethrow_exception(failure);
}

}  // namespace warproll
