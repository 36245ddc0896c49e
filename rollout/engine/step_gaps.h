// StepGaps: the times between the ends of consecutive steps, to tell what a flip cost.
// Thread: the engine's only.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace warproll {

class StepGaps {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // A step ended. Gives the gap since the end of the step before, if there was one.
  std::optional<uint64_t> step_ended(TimePoint start, TimePoint end) {
    std::optional<uint64_t> gap_us;
    if (last_end_) gap_us = microseconds(end - *last_end_);
    durations_us_[num_steps_++ % kWindow] = microseconds(end - start);
    last_end_ = end;
    return gap_us;
  }
  // Nothing to run: the time until the next step is nobody's stall.
  void idle() { last_end_.reset(); }

  [[nodiscard]] uint64_t median_step_us() const {
    auto sorted = durations_us_;
    const size_t count = std::min(num_steps_, kWindow);
    if (count == 0) return 0;
    const auto middle = sorted.begin() + static_cast<ptrdiff_t>(count / 2);
    std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<ptrdiff_t>(count));
    return *middle;
  }

 private:
  static constexpr size_t kWindow = 64;
  static uint64_t microseconds(std::chrono::steady_clock::duration duration) {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
  }
  std::array<uint64_t, kWindow> durations_us_{};
  size_t num_steps_ = 0;
  std::optional<TimePoint> last_end_;
};

}  // namespace warproll
