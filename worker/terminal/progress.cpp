#include "worker/terminal/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace warproll {
namespace {

constexpr int kBarCells = 24;

std::string format_amount(double amount, ProgressUnit unit) {
  if (unit == ProgressUnit::kBytes) return format_bytes(amount);
  char text[32];
  std::snprintf(text, sizeof text, amount < 100 ? "%.3g" : "%.0f", amount);
  return text;
}

}  // namespace

std::string format_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 || bytes >= 100 ? "%.0f %s" : "%.1f %s", bytes,
                kUnits[unit]);
  return text;
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  char text[32];
  if (whole >= 3600) {
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", static_cast<long long>(whole / 3600),
                  static_cast<long long>(whole / 60 % 60), static_cast<long long>(whole % 60));
  } else {
    std::snprintf(text, sizeof text, "%lld:%02lld", static_cast<long long>(whole / 60),
                  static_cast<long long>(whole % 60));
  }
  return text;
}

std::string progress_line(const std::string& label, uint64_t done, uint64_t total,
                          double elapsed_seconds, ProgressUnit unit) {
  const double rate = elapsed_seconds > 0 ? static_cast<double>(done) / elapsed_seconds : 0;
  std::string line = label + " ";
  if (total > 0) {
    const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
    const int cells = static_cast<int>(share * kBarCells);
    line += "[" + std::string(cells, '#') + std::string(kBarCells - cells, '.') + "] ";
    line += std::to_string(static_cast<int>(share * 100)) + "% ";
    line += format_amount(static_cast<double>(done), unit) + " of " +
            format_amount(static_cast<double>(total), unit);
  } else {
    line += format_amount(static_cast<double>(done), unit);
  }
  line += ", " + format_amount(rate, unit) + "/s";
  if (total > done && rate > 0) {
    line += ", ETA " + format_duration(static_cast<double>(total - done) / rate);
  }
  return line;
}

Progress::Progress(std::string label, uint64_t total, ProgressUnit unit)
    : label_(std::move(label)),
      total_(total),
      unit_(unit),
      enabled_(isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      next_draw_(start_ + std::chrono::milliseconds(200)) {}

Progress::~Progress() {
  if (enabled_) std::fputs("\r\033[K", stderr);
}

void Progress::update(uint64_t done) { draw(done); }

void Progress::update(uint64_t done, uint64_t total) {
  total_ = total;
  draw(done);
}

std::function<void(uint64_t, uint64_t)> Progress::callback() {
  return [this](uint64_t done, uint64_t total) { update(done, total); };
}

void Progress::draw(uint64_t done) {
  if (!enabled_) return;
  const Clock::time_point now = Clock::now();
  if (now < next_draw_) return;
  next_draw_ = now + std::chrono::milliseconds(100);
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  std::fprintf(stderr, "\r%s\033[K", progress_line(label_, done, total_, elapsed, unit_).c_str());
  std::fflush(stderr);
}

}  // namespace warproll
