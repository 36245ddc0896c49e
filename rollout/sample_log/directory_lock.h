// DirectoryLock: one worker per log directory. An flock on the file HOLDER, which names the holder
// for the other's error message; released by the kernel when the process ends in whatever way.
// RocksDB's own LOCK is taken too, but it cannot say who holds it.
// Internal to rollout/sample_log. Thread: any. Errors: kFailedPrecondition when held.
#pragma once

#include <string>

#include "protocol/status.h"

namespace warproll {

class DirectoryLock {
 public:
  static Result<DirectoryLock> take(const std::string& directory);
  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&&) = delete;
  ~DirectoryLock();

 private:
  explicit DirectoryLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace warproll
