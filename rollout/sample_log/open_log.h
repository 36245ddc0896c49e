// Opening a log directory for writing: lock, recovery, and the checks that stand between a damaged
// directory and a worker that would silently go on with less than it acknowledged.
// Internal to rollout/sample_log. Thread: any. Errors: as SampleLog::open.
//
// before_open/ holds links to the files as they were before recovery. It goes away when the checks
// pass; when they do not it stays, because RocksDB deletes files that a damaged manifest no longer
// names. `warproll log repair` reads it first.
#pragma once

#include <memory>

#include "rollout/sample_log/directory_lock.h"
#include "rollout/sample_log/high_water.h"
#include "rollout/sample_log/sample_log.h"
#include "rollout/sample_log/store.h"

namespace warproll {

struct OpenedLog {
  DirectoryLock lock;
  std::shared_ptr<Store> store;
  HighWater high_water;
  LogState state;  // epoch already raised, synced
};
Result<OpenedLog> open_log_directory(const SampleLogOptions& options);

// A new, empty log: high-water file and a DB whose meta says `info` (format_version is set here).
Result<std::shared_ptr<Store>> create_log(const SampleLogOptions& options, const LogInfo& info);

}  // namespace warproll
