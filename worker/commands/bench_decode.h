// `warproll bench decode`: tokens per second of the engine, by batch and context, beside the floor that
// the weights' bytes put under a step. Thread: main.
#pragma once

#include "worker/commands/command.h"

namespace warproll {

void add_bench_decode_command(CLI::App& bench, CommandContext& context);

}  // namespace warproll
