// warproll: one binary, one subcommand for each thing it does (worker/commands).
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "worker/commands/command.h"
#include "worker/terminal/exit_code.h"
#include "worker/terminal/nccl_output.h"
#include "worker/terminal/stop_signal.h"

namespace {

// The parser calls a mistyped command a missing one; this names it and what there is.
bool report_unknown_command(const CLI::App& app, int argc, char** argv) {
  const CLI::App* level = &app;
  for (int i = 1; i < argc && level->get_require_subcommand_min() > 0; ++i) {
    const std::string word = argv[i];
    if (word.starts_with('-')) return false;
    const CLI::App* next = nullptr;
    std::string known;
    for (const CLI::App* command : level->get_subcommands([](const CLI::App*) { return true; })) {
      if (command->get_name() == word) next = command;
      if (!command->get_group().empty()) known += " " + command->get_name();  // not hidden
    }
    if (next == nullptr) {
      std::fprintf(stderr, "warproll: unknown command '%s', known:%s\n", word.c_str(),
                   known.c_str());
      return true;
    }
    level = next;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace warproll;
  try {
    StopSignal stop;  // before any thread
    const NcclOutput nccl_output;
    CommandContext context{stop};
    CLI::App app{
        "warproll: rollout worker for online RL of mixture-of-experts language models.\n"
        "`warproll COMMAND --help` has the options and examples of each command.",
        "warproll"};
    app.set_version_flag("--version", "warproll " WARPROLL_VERSION);
    app.require_subcommand(1);
    app.footer(exit_code_help());
    add_worker_command(app, context);
    add_trainer_command(app, context);
    add_generate_command(app, context);
    add_replay_command(app, context);
    add_log_command(app, context);
    add_checkpoint_command(app, context);
    add_bench_command(app, context);
    add_config_command(app, context);
    add_keygen_command(app, context);
    add_doctor_command(app, context);
    if (report_unknown_command(app, argc, argv)) return kExitUsage;
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return app.exit(error) == 0 ? kExitOk : kExitUsage;
    }
    return context.exit_code;
  } catch (const std::exception& error) {  // a broken invariant: nothing to go on with
    std::fprintf(stderr, "warproll: internal fault: %s\n", error.what());
    return kExitInternal;
  }
}
