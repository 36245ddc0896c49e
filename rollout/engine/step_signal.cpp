#include "rollout/engine/step_signal.h"

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

namespace warproll {
namespace {

constexpr int kLooks = 64;  // between two looks at the clock

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void wait_for_step(uint64_t& number, uint64_t wanted, const std::function<bool()>& device_is_idle,
                   std::chrono::milliseconds check_every) {
  using Clock = std::chrono::steady_clock;
  const std::atomic_ref<uint64_t> word(number);
  const auto is_there = [&] { return word.load(std::memory_order_acquire) == wanted; };
  Clock::time_point next_check = Clock::now() + check_every;
  while (true) {
    for (int i = 0; i < kLooks; ++i) {
      if (is_there()) return;
      relax();
    }
    std::this_thread::yield();
    if (Clock::now() < next_check) continue;
    if (device_is_idle() && !is_there()) {
      throw std::logic_error("step " + std::to_string(wanted) +
                             " did not end: the device is idle, " +
                             "the last number in its slot is " + std::to_string(word.load()));
    }
    next_check = Clock::now() + check_every;
  }
}

}  // namespace warproll
