#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "worker/commands/command.h"
#include "worker/node/worker_node.h"
#include "worker/terminal/exit_code.h"

namespace warproll {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> set;
};

int run(const Options& options, CommandContext& context) {
  Result<WorkerConfig> config = options.config.empty()
                                    ? parse_worker_config(options.set)
                                    : load_worker_config(options.config, options.set);
  if (!config.ok()) return report_config_failure(config.status());
  const std::string name = config->name.empty() ? "worker" : config->name;
  const Logger logger(name, config->logging.level, config->logging.format);
  Result<std::unique_ptr<WorkerNode>> node = WorkerNode::start(*config, logger);
  if (!node.ok()) return report_failure(node.status());
  const Status ended = (*node)->run(context.stop);
  return ended.ok() ? kExitOk : report_failure(ended);
}

}  // namespace

void add_worker_command(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("worker", "Generate rollouts for a trainer");
  command->footer(footer_with_examples(
      "  warproll worker --set model.checkpoint=ckpt/arith-v1 --set "
      "trainer.endpoint=tcp://10.0.0.1:5600\n"
      "  warproll worker --config configs/worker.yaml --set log.directory=/data/log-3\n"
      "SIGTERM drains: what runs is finished, sealed and sent, then the process ends with 0.\n"));
  auto options = std::make_shared<Options>();
  command->add_option("--config", options->config, "YAML file (configs/worker.yaml has every key)");
  command->add_option("--set", options->set, "section.key=value, over the file; repeatable");
  command->callback([&context, options] { context.exit_code = run(*options, context); });
}

}  // namespace warproll
