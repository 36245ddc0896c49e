// TaskFeeder: keeps the lease table filled from a task source, a bounded number ahead, and writes
// which tasks were issued to `issued.jsonl` in the state directory (before they are issued), so that
// an outsider can check that each sample arrived exactly once.
// A restarted trainer feeds the same tasks again; what was taken already is left out by the leases.
// Thread: one, the io loop's.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "protocol/status.h"
#include "rollout/stream/trainer_stream.h"
#include "worker/trainer/task_source.h"

namespace warproll {

class TaskFeeder {
 public:
  // issued_path is appended to; tasks it names already are not written again.
  static Result<std::unique_ptr<TaskFeeder>> open(std::unique_ptr<TaskSource> source,
                                                  const std::string& issued_path);
  ~TaskFeeder();
  TaskFeeder(const TaskFeeder&) = delete;
  TaskFeeder& operator=(const TaskFeeder&) = delete;

  // Adds tasks until `max_unfinished` are open or leased, or the source ends. A file that cannot be
  // written is kUnavailable; no task is lost by it, the next call tries again.
  Status feed(TrainerStream& stream, size_t max_unfinished);
  [[nodiscard]] bool exhausted() const { return exhausted_ && pending_.empty(); }
  [[nodiscard]] uint64_t num_tasks() const { return source_->num_tasks(); }

 private:
  TaskFeeder(std::unique_ptr<TaskSource> source, std::string issued_path, int issued_fd,
             uint64_t num_written, uint64_t bytes_written);
  Status write_issued();
  const std::unique_ptr<TaskSource> source_;
  const std::string issued_path_;
  const int issued_fd_;
  uint64_t num_written_;  // lines in the file; the source is deterministic, so the first tasks
  uint64_t bytes_written_;
  std::deque<Task> pending_;  // read from the source, not yet fed: a full disk keeps them here
  uint64_t num_fed_ = 0;
  bool exhausted_ = false;
};

}  // namespace warproll
