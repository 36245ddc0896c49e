// StepLog: when each step of an engine ended and how many tokens it gave; what `warproll bench sync`
// tells stalls and rates from. Thread: any; one mutex.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "rollout/engine/backend.h"

namespace warproll {

// Of the gaps between the ends of two steps that overlap a window.
struct StepWindow {
  using TimePoint = std::chrono::steady_clock::time_point;
  size_t num_gaps = 0;
  double tokens_per_s = 0;  // over the gaps that lie inside
  double median_gap_us = 0;
  double longest_gap_us = 0;
  TimePoint longest_from, longest_to;
};

class StepLog {
 public:
  using TimePoint = StepWindow::TimePoint;
  void add(TimePoint end, size_t num_tokens);
  [[nodiscard]] StepWindow window(TimePoint from, TimePoint to) const;
  [[nodiscard]] size_t num_steps() const;

 private:
  struct Step {
    TimePoint end;
    size_t num_tokens = 0;
  };
  mutable std::mutex mutex_;
  std::vector<Step> steps_;
};

// The backend, its steps logged as their tokens reach the host.
ModelBackend with_step_log(ModelBackend backend, std::shared_ptr<StepLog> log);

}  // namespace warproll
