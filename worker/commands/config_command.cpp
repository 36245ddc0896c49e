#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "worker/commands/command.h"
#include "worker/config/trainer_config.h"
#include "worker/config/worker_config.h"
#include "worker/terminal/exit_code.h"

namespace warproll {
namespace {

struct Options {
  std::string kind = "worker";
  std::string file;
  std::vector<std::string> set;
};

template <typename Load>
int check_or_show(const Load& load, const Options& options, bool show) {
  const auto config = load(options.file, options.set);
  if (!config.ok()) return report_config_failure(config.status());
  std::fputs(show ? print(*config).c_str() : (options.file + ": ok\n").c_str(), stdout);
  return kExitOk;
}

int run(const Options& options, bool show) {
  if (show && options.file.empty()) {
    std::fputs(
        options.kind == "worker" ? print(WorkerConfig{}).c_str() : print(TrainerConfig{}).c_str(),
        stdout);
    return kExitOk;
  }
  return options.kind == "worker" ? check_or_show(load_worker_config, options, show)
                                  : check_or_show(load_trainer_config, options, show);
}

}  // namespace

void add_config_command(CLI::App& app, CommandContext& context) {
  CLI::App* config = app.add_subcommand("config", "Check or show configuration files");
  config->require_subcommand(1);
  config->footer(footer_with_examples(
      "  warproll config check worker configs/worker.yaml\n"
      "  warproll config show worker                          # every key with its default\n"
      "  warproll config show trainer my.yaml --set tasks.count=10\n"));
  auto options = std::make_shared<Options>();
  for (const bool show : {false, true}) {
    CLI::App* command =
        show ? config->add_subcommand("show", "Print the effective configuration as YAML")
             : config->add_subcommand("check", "Read a file and say everything that is wrong");
    command->add_option("kind", options->kind, "worker or trainer")
        ->required()
        ->check(CLI::IsMember({"worker", "trainer"}));
    CLI::Option* file = command->add_option("file", options->file, "YAML file");
    if (!show) file->required();
    command->add_option("--set", options->set, "section.key=value, over the file; repeatable");
    command->callback([&context, options, show] { context.exit_code = run(*options, show); });
  }
}

}  // namespace warproll
