// TrajectoryJsonl: the JSONL file of a trainer, one line for each taken trajectory, in the order
// they were taken. It is derived from the TrajectoryStore: line k (from 0) is take_index k, so it
// holds each exactly once whatever crashes.
//
// The store keeps how many lines and bytes are known to be on disk. open() cuts what is beyond them
// (a torn line, or lines whose progress was not recorded) and those lines are written again; a file
// that is shorter than recorded (moved away, or lost) is written anew from the store. Lines that a
// rollback took back go to "<path>.rolled-back" (appended), so that nothing vanishes.
//
// Thread: one, the receiver's. Lifetime: the store outlives it. Errors: kUnavailable or
// kResourceExhausted (full disk) when the file cannot be written; call again, it goes on where it
// stopped. A stored record that does not decode is kDataLoss.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "protocol/records.h"
#include "protocol/status.h"
#include "rollout/stream/trajectory_store.h"

namespace warproll {

struct TrajectoryJsonlOptions {
  std::string path;
  uint64_t sync_bytes = 1 << 20;  // unsynced bytes after which write() syncs by itself
  // May add a reward before the line is written; must give the same for the same trajectory. The
  // stored record is not changed.
  std::function<void(Trajectory&)> annotate;
};

class TrajectoryJsonl {
 public:
  static Result<std::unique_ptr<TrajectoryJsonl>> open(TrajectoryJsonlOptions options,
                                                       TrajectoryStore& store);
  ~TrajectoryJsonl();
  TrajectoryJsonl(const TrajectoryJsonl&) = delete;
  TrajectoryJsonl& operator=(const TrajectoryJsonl&) = delete;

  // Appends at most `max_lines` of what was taken; true when the file is up to date.
  Result<bool> write(size_t max_lines);
  // Makes the lines durable and records the progress. Call now and then, and before closing.
  Status sync();
  [[nodiscard]] uint64_t num_lines() const { return lines_; }

 private:
  TrajectoryJsonl(TrajectoryJsonlOptions options, TrajectoryStore& store);
  Status recover();
  Status cut_after(uint64_t num_lines);
  Status truncate(uint64_t bytes);
  Status keep_aside(uint64_t from_byte);
  Status append(const std::string& text);

  const TrajectoryJsonlOptions options_;
  TrajectoryStore& store_;
  int fd_ = -1;
  uint64_t lines_ = 0;
  uint64_t bytes_ = 0;
  uint64_t synced_bytes_ = 0;
};

}  // namespace warproll
