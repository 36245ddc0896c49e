#include "worker/commands/bench_sync_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;
constexpr uint64_t kMaxTextBytes = uint64_t{256} << 20;
constexpr std::chrono::seconds kChildEnds(20);  // a large model's memory takes seconds to free

struct Head {  // of a frame on the socket, then the text
  SyncTask task;
  int32_t code;
  UpdateId id;
  uint64_t seed, number;
  double seconds;
  uint32_t deadline_ms;
  int32_t max_ctas;
  uint64_t text_bytes;
};

Status write_all(int fd, const void* from, size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t written = ::send(fd, at, bytes, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return unavailable(std::string("the other process: ") + strerror(errno));
    at += written;
    bytes -= static_cast<size_t>(written);
  }
  return ok_status();
}

}  // namespace

SyncFrame failed_frame(SyncTask task, const Status& status) {
  SyncFrame frame;
  frame.task = task;
  frame.code = status.code();
  frame.text = status.message();
  return frame;
}

Status SyncLink::send(const SyncFrame& frame) {
  Head head{};
  head.task = frame.task;
  head.code = static_cast<int32_t>(frame.code);
  head.id = frame.id;
  head.seed = frame.seed;
  head.number = frame.number;
  head.seconds = frame.seconds;
  head.deadline_ms = frame.deadline_ms;
  head.max_ctas = frame.max_ctas;
  head.text_bytes = frame.text.size();
  WARPROLL_TRY(write_all(fd_.get(), &head, sizeof head));
  return write_all(fd_.get(), frame.text.data(), frame.text.size());
}

Status SyncLink::read_all(void* to, size_t bytes, Clock::time_point deadline) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    pollfd ready{fd_.get(), POLLIN, 0};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const int polled = ::poll(&ready, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000)));
    if (polled < 0 && errno == EINTR) continue;
    if (polled == 0) return deadline_exceeded("the other process does not answer");
    const ssize_t got = ::recv(fd_.get(), at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return unavailable("the other process has ended");
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return ok_status();
}

Result<SyncFrame> SyncLink::receive(std::chrono::milliseconds limit) {
  const Clock::time_point deadline = Clock::now() + limit;
  Head head{};
  WARPROLL_TRY(read_all(&head, sizeof head, deadline));
  if (head.text_bytes > kMaxTextBytes) {
    return data_loss("a frame of " + std::to_string(head.text_bytes) + " bytes, wanted at most " +
                     std::to_string(kMaxTextBytes));
  }
  SyncFrame frame;
  frame.task = head.task;
  frame.code = static_cast<StatusCode>(head.code);
  frame.id = head.id;
  frame.seed = head.seed;
  frame.number = head.number;
  frame.seconds = head.seconds;
  frame.deadline_ms = head.deadline_ms;
  frame.max_ctas = head.max_ctas;
  frame.text.resize(head.text_bytes);
  WARPROLL_TRY(read_all(frame.text.data(), frame.text.size(), deadline));
  return frame;
}

Result<SyncFrame> SyncLink::answer(std::chrono::milliseconds limit) {
  WARPROLL_TRY_ASSIGN(frame, receive(limit));
  if (frame.code != StatusCode::kOk)
    return Status(frame.code, "the trainer's process: " + frame.text);
  return frame;
}

Result<SyncFrame> SyncLink::ask(const SyncFrame& frame, std::chrono::milliseconds limit) {
  WARPROLL_TRY(send(frame));
  return answer(limit);
}

Status SyncChild::start(std::vector<std::string> arguments,
                        const std::vector<std::pair<std::string, std::string>>& environment) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return unavailable(std::string("a socket pair: ") + strerror(errno));
  }
  link_ = SyncLink(UniqueFd(ends[0]));
  UniqueFd theirs(ends[1]);
  arguments.insert(arguments.begin(), "warproll");
  arguments.insert(arguments.end(), {"--fd", std::to_string(theirs.get())});
  std::vector<char*> argv;
  for (std::string& each : arguments) argv.push_back(each.data());
  argv.push_back(nullptr);
  std::vector<std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) variables.emplace_back(*each);
  for (const auto& [key, value] : environment) {
    std::erase_if(variables,
                  [&key](const std::string& each) { return each.starts_with(key + "="); });
    variables.push_back(key + "=" + value);
  }
  std::vector<char*> envp;
  for (std::string& each : variables) envp.push_back(each.data());
  envp.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ < 0) return unavailable(std::string("a process for the trainer: ") + strerror(errno));
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::fcntl(theirs.get(), F_SETFD, 0);
    ::execve("/proc/self/exe", argv.data(), envp.data());
    ::_exit(127);
  }
  return ok_status();
}

SyncChild::~SyncChild() {
  if (pid_ <= 0) return;
  link_.close();
  const Clock::time_point deadline = Clock::now() + kChildEnds;
  while (::waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (Clock::now() >= deadline) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace warproll
