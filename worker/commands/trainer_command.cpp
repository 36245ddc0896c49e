#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "worker/commands/command.h"
#include "worker/terminal/exit_code.h"
#include "worker/trainer/trainer.h"

namespace warproll {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> set;
};

int run(const Options& options, CommandContext& context) {
  Result<TrainerConfig> config = options.config.empty()
                                     ? parse_trainer_config(options.set)
                                     : load_trainer_config(options.config, options.set);
  if (!config.ok()) return report_config_failure(config.status());
  const Logger logger("trainer", config->logging.level, config->logging.format);
  Result<std::unique_ptr<Trainer>> trainer = Trainer::create(*config, logger);
  if (!trainer.ok()) return report_failure(trainer.status());
  const Status ended = (*trainer)->run(context.stop);
  std::fputs((*trainer)->report().c_str(), stdout);
  return ended.ok() ? kExitOk : report_failure(ended);
}

}  // namespace

void add_trainer_command(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand(
      "trainer", "Reference trainer: issue tasks, publish checkpoints, take trajectories");
  command->footer(footer_with_examples(
      "  warproll trainer --set tasks.count=500 --set "
      "checkpoints.publish=[ckpt/v1,ckpt/v2,ckpt/v3]\n"
      "  warproll trainer --config configs/trainer.yaml --set tasks.source=jsonl --set "
      "tasks.file=t.jsonl\n"
      "A restart with the same trainer.state_directory goes on where it stopped.\n"
      "docs/tasks.md has the task file, docs/protocol.md what a trainer of your own has to "
      "say.\n"));
  auto options = std::make_shared<Options>();
  command->add_option("--config", options->config,
                      "YAML file (configs/trainer.yaml has every key)");
  command->add_option("--set", options->set, "section.key=value, over the file; repeatable");
  command->callback([&context, options] { context.exit_code = run(*options, context); });
}

}  // namespace warproll
