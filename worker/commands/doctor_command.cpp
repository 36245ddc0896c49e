#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "worker/commands/command.h"
#include "worker/commands/doctor_checks.h"
#include "worker/terminal/exit_code.h"
#include "worker/terminal/table.h"

namespace warproll {
namespace {

struct Options {
  std::string worker_config;
  std::string trainer_config;
  std::vector<std::string> set;
};

int run(const Options& options) {
  std::vector<DoctorFinding> findings = check_machine();
  const auto add = [&](std::vector<DoctorFinding> more) {
    findings.insert(findings.end(), more.begin(), more.end());
  };
  if (!options.worker_config.empty()) {
    const auto config = load_worker_config(options.worker_config, options.set);
    if (config.ok()) {
      add(check_worker(*config));
    } else {
      add({{DoctorVerdict::kFail, "configuration", config.status().message()}});
    }
  }
  if (!options.trainer_config.empty()) {
    const auto config = load_trainer_config(options.trainer_config, options.set);
    if (config.ok()) {
      add(check_trainer(*config));
    } else {
      add({{DoctorVerdict::kFail, "configuration", config.status().message()}});
    }
  }
  Table table({"", "check", "result"});
  size_t failures = 0;
  for (const DoctorFinding& finding : findings) {
    failures += finding.verdict == DoctorVerdict::kFail ? 1 : 0;
    table.add({std::string(to_string(finding.verdict)), finding.check, finding.text});
  }
  std::fputs(table.to_string().c_str(), stdout);
  return failures == 0 ? kExitOk : kExitFailed;
}

}  // namespace

void add_doctor_command(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Say what would go wrong, before a run does: machine and config");
  command->footer(footer_with_examples(
      "  warproll doctor\n"
      "  warproll doctor --worker configs/worker.yaml --set model.checkpoint=ckpt/v1\n"
      "  warproll doctor --trainer configs/trainer.yaml\n"));
  auto options = std::make_shared<Options>();
  CLI::Option* worker =
      command->add_option("--worker", options->worker_config, "check a worker configuration");
  CLI::Option* trainer =
      command->add_option("--trainer", options->trainer_config, "check a trainer configuration");
  worker->excludes(trainer);
  command->add_option("--set", options->set, "section.key=value, over the file; repeatable");
  command->callback([&context, options] { context.exit_code = run(*options); });
}

}  // namespace warproll
