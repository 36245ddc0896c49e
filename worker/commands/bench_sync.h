// `warproll bench sync`, and the hidden commands of the processes that it starts. Thread: main.
#pragma once

#include "worker/commands/command.h"

namespace warproll {

void add_bench_sync_command(CLI::App& bench, CommandContext& context);
void add_bench_sync_trainer_command(CLI::App& bench, CommandContext& context);
void add_bench_sync_worker_command(CLI::App& bench, CommandContext& context);

}  // namespace warproll
