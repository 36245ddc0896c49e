#include "worker/terminal/stop_signal.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace warproll {

StopSignal::StopSignal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);  // a closed pipe or socket is an error value, not a death
  signal_fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (signal_fd_ < 0 || event_fd_ < 0) {
    throw std::system_error(errno, std::generic_category(), "signalfd or eventfd");
  }
}

StopSignal::~StopSignal() {
  close(signal_fd_);
  close(event_fd_);
}

bool StopSignal::wait_until(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  pollfd fds[2] = {{signal_fd_, POLLIN, 0}, {event_fd_, POLLIN, 0}};
  const int timeout_ms = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 3'600'000));
  if (poll(fds, 2, timeout_ms) <= 0) return requested();
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (requested_.exchange(true)) _exit(128 + static_cast<int>(info.ssi_signo));
  }
  uint64_t count = 0;
  if (read(event_fd_, &count, sizeof count) == static_cast<ssize_t>(sizeof count)) {
    requested_ = true;
  }
  return requested();
}

void StopSignal::request() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event_fd_, &one, sizeof one);
}

}  // namespace warproll
