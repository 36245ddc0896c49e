// Progress: one line on a terminal with share, rate and ETA; silent when stderr is no terminal.
// Thread: update() from any one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace warproll {

enum class ProgressUnit { kItems, kBytes };

class Progress {
 public:
  // total 0 = unknown. Draws at most ten times a second.
  Progress(std::string label, uint64_t total, ProgressUnit unit);
  ~Progress();  // clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(uint64_t done);
  void update(uint64_t done, uint64_t total);
  [[nodiscard]] std::function<void(uint64_t, uint64_t)> callback();

 private:
  using Clock = std::chrono::steady_clock;
  void draw(uint64_t done);
  const std::string label_;
  uint64_t total_;
  const ProgressUnit unit_;
  const bool enabled_;
  const Clock::time_point start_;
  Clock::time_point next_draw_;
};

// "1.5 GiB", "312 KiB".
std::string format_bytes(double bytes);
// "1:02:03", "0:42".
std::string format_duration(double seconds);
// The line Progress draws; pure, for tests.
std::string progress_line(const std::string& label, uint64_t done, uint64_t total,
                          double elapsed_seconds, ProgressUnit unit);

}  // namespace warproll
