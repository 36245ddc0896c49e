#include "rollout/sample_log/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace warproll {

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
DirectoryLock::~DirectoryLock() {
  if (fd_ >= 0) ::close(fd_);
}

Result<DirectoryLock> DirectoryLock::take(const std::string& directory) {
  const std::string path = directory + "/HOLDER";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return unavailable("cannot open " + path + ": " + std::strerror(errno));
  DirectoryLock lock(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    char holder[256];
    const ssize_t length = pread(fd, holder, sizeof(holder), 0);
    const std::string who(holder, length > 0 ? static_cast<size_t>(length) : 0);
    return failed_precondition("sample log directory " + directory +
                               " is in use by another worker (" +
                               (who.empty() ? std::string("holder unknown") : who) +
                               "); give every worker a directory of its own");
  }
  char host[128] = "unknown host";
  gethostname(host, sizeof(host) - 1);
  const std::string text = "pid " + std::to_string(getpid()) + " on " + host;
  if (ftruncate(fd, 0) != 0 ||
      pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    // A full disk: the lock holds, only its label is missing.
    return lock;
  }
  return lock;
}

}  // namespace warproll
