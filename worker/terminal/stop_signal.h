// StopSignal: SIGTERM and SIGINT as something to wait for. Make it first thing in main, before any
// thread exists: it blocks the two signals for all of them. A second signal ends the process at
// once. Thread: the one that made it waits; requested() from any.
#pragma once

#include <atomic>
#include <chrono>

namespace warproll {

class StopSignal {
 public:
  StopSignal();  // throws std::system_error
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // True as soon as a stop was asked for; false when `deadline` passed first.
  bool wait_until(std::chrono::steady_clock::time_point deadline);
  [[nodiscard]] bool requested() const { return requested_.load(std::memory_order_relaxed); }
  // Asks for a stop from inside the process (tests, a fatal fault elsewhere).
  void request();

 private:
  int signal_fd_ = -1;
  int event_fd_ = -1;
  std::atomic<bool> requested_{false};
};

}  // namespace warproll
