#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "worker/commands/command.h"
#include "worker/commands/log_listing.h"
#include "worker/commands/log_query.h"
#include "worker/commands/regenerate_samples.h"
#include "worker/commands/replay_to_trainer.h"
#include "worker/terminal/exit_code.h"

namespace warproll {
namespace {

constexpr const char* kExamples =
    "  warproll replay --log runs/w1/log --to tcp://127.0.0.1:5600\n"
    "  warproll replay --log runs/w1/log --to tcp://127.0.0.1:5600 --since 2h --rate 200 --as-new\n"
    "  warproll replay --log runs/w1/log --weight-version 3 --output v3.jsonl\n"
    "  warproll replay --log runs/w1/log --regenerate --checkpoint ckpt/v1 --checkpoint ckpt/v2\n"
    "A running worker's log can be replayed. Without --as-new the trainer takes what it does not "
    "have\n"
    "yet and acknowledges the rest; with it every sample is taken, under task ids of its own.\n";

struct Options {
  std::string directory;
  LogSelection selection;
  ReplayToTrainerOptions trainer;
  std::string output;
  std::string format = "jsonl";
  bool regenerate = false;
  RegenerateOptions regeneration;
};

int run(const Options& options, CommandContext& context) {
  if (options.regenerate) {
    return regenerate_samples(options.directory, options.selection, options.regeneration, context);
  }
  if (!options.output.empty()) {
    return export_samples(options.directory, options.selection, options.output, options.format,
                          context);
  }
  return replay_to_trainer(options.directory, options.selection, options.trainer, context);
}

}  // namespace

void add_replay_command(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      app.add_subcommand("replay", "Send stored samples again, or run them again and compare bits");
  command->footer(footer_with_examples(kExamples));
  auto options = std::make_shared<Options>();
  command->add_option("--log", options->directory, "log directory")->required();
  add_selection_options(*command, options->selection);
  CLI::Option_group* where = command->add_option_group("where", "exactly one of");
  where->add_option("--to", options->trainer.endpoint, "a trainer's address");
  where->add_option("--output", options->output, "a file; - = standard output");
  where->add_flag("--regenerate", options->regenerate,
                  "generate each sample again and compare bit for bit");
  where->require_option(1);
  command->add_option("--rate", options->trainer.samples_per_s,
                      "samples per second to a trainer; 0 = as fast as it takes them");
  command->add_flag("--as-new", options->trainer.as_new, "as other samples with the same content");
  command->add_option("--secret-key-file", options->trainer.secret_key_file, "CURVE key pair");
  command->add_option("--server-public-key", options->trainer.server_public_key,
                      "CURVE public key of the trainer");
  command
      ->add_option("--deadline-s", options->trainer.deadline_s,
                   "give up when the trainer makes no progress for so long")
      ->capture_default_str();
  command->add_option("--format", options->format, "of --output: jsonl or records")
      ->check(CLI::IsMember({"jsonl", "records"}));
  command->add_option("--checkpoint", options->regeneration.checkpoints,
                      "weights for --regenerate, found by their digest; repeatable");
  command
      ->add_option("--device", options->regeneration.device,
                   "for --regenerate: cpu, cuda or auto = what made the record")
      ->capture_default_str();
  command->add_flag("--quantise-mxfp8", options->regeneration.quantise,
                    "the worker quantised on receive");
  command->callback([&context, options] { context.exit_code = run(*options, context); });
}

}  // namespace warproll
