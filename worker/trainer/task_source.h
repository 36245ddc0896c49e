// TaskSource: where the reference trainer's tasks come from, and how a finished trajectory is
// rewarded. Deterministic: the same source gives the same tasks with the same ids after a restart,
// so that what was already taken can be left out. Thread: one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "protocol/records.h"
#include "protocol/status.h"
#include "worker/config/trainer_config.h"

namespace warproll {

class TaskSource {
 public:
  virtual ~TaskSource() = default;
  // The next task, or empty at the end. A bad line of a file is an error that names file and line.
  virtual Result<std::optional<Task>> next() = 0;
  // How many tasks there are in all; 0 = without end.
  [[nodiscard]] virtual uint64_t num_tasks() const = 0;
};

// tasks.source arithmetic: addition problems "123+456=" whose metadata is the answer.
// tasks.source jsonl: one object a line, the fields of docs/tasks.md.
Result<std::unique_ptr<TaskSource>> make_task_source(const TrainerConfig& config);

// Exact match of the response's text with the answer in the task's metadata ({"answer": "579"}):
// 1 or 0. Empty when the task has no answer, or when the trajectory failed or was aborted.
std::optional<Reward> exact_match_reward(const Trajectory& trajectory);

}  // namespace warproll
