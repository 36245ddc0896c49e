// for_each_index: runs work(i) for every i in [0, count) on up to num_threads threads, the calling
// one among them, and returns when all are done. Which thread takes which index is not fixed, so
// work(i) must write only what belongs to i. `after_own` (may be empty) runs on the calling thread
// after each index it did itself, and is the place for progress reports.
// An exception of work() is rethrown here after the other threads have stopped.
#pragma once

#include <cstddef>
#include <functional>

namespace warproll {

// num_threads 0 = as many as the machine has.
void for_each_index(size_t count, int num_threads, const std::function<void(size_t)>& work,
                    const std::function<void()>& after_own = {});

}  // namespace warproll
