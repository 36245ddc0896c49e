// `warproll replay --regenerate`: runs stored samples again, each alone, on the weights their record
// names, and compares bit for bit. Thread: main.
#pragma once

#include <string>
#include <vector>

#include "worker/commands/command.h"
#include "worker/commands/log_query.h"

namespace warproll {

struct RegenerateOptions {
  std::vector<std::string> checkpoints;  // found by their digest, whatever version they had
  bool quantise = false;
  std::string device = "auto";  // "auto": the one that made the record; "cpu", "cuda"
};

// Prints the first difference of each sample that differs. The exit code: 1 when bits differ, 3
// when the weights of a sample are not among the checkpoints.
int regenerate_samples(const std::string& directory, const LogSelection& selection,
                       const RegenerateOptions& options, CommandContext& context);

}  // namespace warproll
