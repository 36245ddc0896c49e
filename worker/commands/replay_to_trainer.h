// `warproll replay --to`: the io loop around a ReplaySource (rollout/stream). Thread: main.
#pragma once

#include <cstdint>
#include <string>

#include "worker/commands/command.h"
#include "worker/commands/log_query.h"

namespace warproll {

struct ReplayToTrainerOptions {
  std::string endpoint;
  double samples_per_s = 0;
  bool as_new = false;
  std::string secret_key_file;
  std::string server_public_key;
  int64_t deadline_s = 60;
};

// The exit code: 1 when the trainer refused samples.
int replay_to_trainer(const std::string& directory, const LogSelection& selection,
                      const ReplayToTrainerOptions& options, CommandContext& context);

}  // namespace warproll
