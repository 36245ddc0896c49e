#include "worker/terminal/nccl_output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace warproll {
namespace {

void write_all(int fd, const char* bytes, ssize_t size) {
  while (size > 0) {
    const ssize_t written = ::write(fd, bytes, static_cast<size_t>(size));
    if (written <= 0) return;
    bytes += written;
    size -= written;
  }
}

}  // namespace

NcclOutput::NcclOutput() {
  if (std::getenv("NCCL_DEBUG") == nullptr || std::getenv("NCCL_DEBUG_FILE") != nullptr) return;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  read_ = UniqueFd(ends[0]);
  write_ = UniqueFd(ends[1]);
  stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
  if (!stop_.valid() || ::fcntl(read_.get(), F_SETFL, O_NONBLOCK) != 0) return;
  const std::string path =
      "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(write_.get());
  if (::setenv("NCCL_DEBUG_FILE", path.c_str(), 1) != 0) return;
  forwarder_ = std::thread([this] { forward(); });
}

NcclOutput::~NcclOutput() {
  if (!forwarder_.joinable()) return;
  const uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof(one));
  forwarder_.join();
}

void NcclOutput::forward() const {
  char bytes[4096];
  pollfd waits[] = {{read_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  while (waits[1].revents == 0) {
    if (::poll(waits, 2, -1) < 0) continue;
    for (ssize_t size; (size = ::read(read_.get(), bytes, sizeof(bytes))) > 0;) {
      write_all(STDERR_FILENO, bytes, size);
    }
  }
}

}  // namespace warproll
