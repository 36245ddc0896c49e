// What the commands of `warproll` share. Each command is one file here: add_<name>_command() puts it
// on the command line, with help, examples and a callback that sets the exit code.
// Thread: main.
#pragma once

#include <string>
#include <string_view>

#include "protocol/status.h"

namespace CLI {
class App;
}

namespace warproll {

class StopSignal;

struct CommandContext {
  StopSignal& stop;
  int exit_code = 0;
};

void add_worker_command(CLI::App& app, CommandContext& context);
void add_trainer_command(CLI::App& app, CommandContext& context);
void add_generate_command(CLI::App& app, CommandContext& context);
void add_replay_command(CLI::App& app, CommandContext& context);
void add_log_command(CLI::App& app, CommandContext& context);
void add_checkpoint_command(CLI::App& app, CommandContext& context);
void add_bench_command(CLI::App& app, CommandContext& context);
void add_bench_moe_command(CLI::App& bench, CommandContext& context);
void add_config_command(CLI::App& app, CommandContext& context);
void add_keygen_command(CLI::App& app, CommandContext& context);
void add_doctor_command(CLI::App& app, CommandContext& context);

// "warproll: <status>" on stderr; the exit code for it (worker/terminal/exit_code.h).
int report_failure(const Status& status);
// The same for a configuration or the words of a command: what is wrong with them is a usage error.
int report_config_failure(const Status& status);
// Text for App::footer(): the examples, then the exit codes.
std::string footer_with_examples(std::string_view examples);

}  // namespace warproll
