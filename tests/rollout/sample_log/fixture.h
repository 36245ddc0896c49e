// What the sample log's tests share: a folder that goes away, trajectories from a seed, waiting for
// a condition, and a trajectory's own log opened with test-sized options.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "protocol/records.h"
#include "rollout/sample_log/sample_log.h"

namespace warproll::testing {

using Clock = std::chrono::steady_clock;

class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  [[nodiscard]] std::string path(const std::string& name = "log") const {
    return (root_ / name).string();
  }

 private:
  std::filesystem::path root_;
};

// A well-formed trajectory with random content. seq, epoch and ids of the log are left to append().
struct TrajectoryShape {
  std::string task_id = "task";
  std::string group_id;  // empty = task_id
  int32_t sample_index = 0;
  int32_t response_tokens = 20;
  uint64_t weight_version = 1;
  bool routes = false;
};
Trajectory make_trajectory(const TrajectoryShape& shape, std::mt19937_64& rng);

SampleLogOptions test_options(const std::string& directory);

// In a minute from now: long enough for any machine, short enough to fail a hung test.
Clock::time_point soon();
bool wait_until(const std::function<bool()>& condition);

// Appends `count` trajectories of tasks "task-<n>", n from first_task on, and waits for all.
std::vector<Sealed> append_many(SampleLog& log, int count, std::mt19937_64& rng,
                                int first_task = 0);

// Also of a log in use, when nothing is being written to it.
void copy_folder(const std::string& from, const std::string& to);

// This test binary with `arguments`, its descriptor 3 connected to `read_fd`.
struct Child {
  pid_t pid = -1;
  int read_fd = -1;
};
Child start_child(const std::vector<std::string>& arguments);
// The other side: `--writer DIRECTORY DURABILITY SEED` appends until killed and reports each
// acknowledged sample on descriptor 3 as "seq task_id\n".
int writer_main(const std::vector<std::string>& arguments);
// `--crash DIRECTORY SAMPLES`: two runs of SAMPLES / 2 each, the second ended by SIGKILL in mid-air.
int crash_main(const std::vector<std::string>& arguments);

}  // namespace warproll::testing
