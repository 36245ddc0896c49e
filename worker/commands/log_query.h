// Which samples of a log a command is about: the options of `log ls`, `log export` and `replay`.
// Thread: main.
#pragma once

#include <string>
#include <vector>

#include "protocol/status.h"
#include "rollout/sample_log/log_reader.h"

namespace CLI {
class App;
}

namespace warproll {

struct LogSelection {
  uint64_t from_seq = 1;
  uint64_t to_seq = 0;  // 0 = to the end
  std::string task_id;
  std::string group_id;
  std::string weight_version;
  std::string since;  // "2026-11-29T14:00:00Z", "@1764424800" or "90m" ago
  std::string until;
};

void add_selection_options(CLI::App& command, LogSelection& selection);
// now_ns: Unix time, what "90m" counts back from.
Result<SampleQuery> to_query(const LogSelection& selection, int64_t now_ns);
// The selected samples of a snapshot of the log, which goes with the cursor; ages count from now.
Result<SampleCursor> open_selection(const std::string& directory, const LogSelection& selection);
// Unix nanoseconds of one of the three spellings of a time; the error lists them.
Result<int64_t> parse_time(const std::string& text, int64_t now_ns);

}  // namespace warproll
