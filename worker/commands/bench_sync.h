// `warproll bench sync`, and the hidden command of the process that plays its trainer. Thread: main.
#pragma once

#include "worker/commands/command.h"

namespace warproll {

void add_bench_sync_command(CLI::App& bench, CommandContext& context);
void add_bench_sync_trainer_command(CLI::App& bench, CommandContext& context);

}  // namespace warproll
