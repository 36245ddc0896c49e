#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "rollout/sample_log/log_check.h"
#include "worker/commands/command.h"
#include "worker/commands/log_listing.h"
#include "worker/commands/log_query.h"
#include "worker/terminal/exit_code.h"
#include "worker/terminal/progress.h"
#include "worker/terminal/stop_signal.h"

namespace warproll {
namespace {

constexpr const char* kExamples =
    "  warproll log ls runs/w1/log --weight-version 3 --limit 20\n"
    "  warproll log show runs/w1/log 117\n"
    "  warproll log stats runs/w1/log\n"
    "  warproll log verify runs/w1/log          # exit 1 when something is damaged\n"
    "  warproll log export runs/w1/log --output samples.jsonl --group arith-1-7\n"
    "  warproll log repair runs/w1/log --to runs/w1/repaired\n"
    "A running worker's log can be read: every command works on a snapshot of its own.\n";

// Progress in samples; false (stop) as soon as SIGTERM or SIGINT came.
LogProgress progress_callback(Progress& progress, CommandContext& context) {
  return [&progress, &context](uint64_t done, uint64_t total, uint64_t) {
    progress.update(done, total);
    return !context.stop.wait_until(std::chrono::steady_clock::now());
  };
}

int run_verify(const std::string& directory, CommandContext& context) {
  Result<VerifyReport> report = [&] {
    Progress progress("verify", 0, ProgressUnit::kItems);
    return verify_log(directory, progress_callback(progress, context));
  }();
  if (!report.ok()) return report_failure(report.status());
  for (const Finding& finding : report->findings) {
    std::printf("%-15s %s%s\n", std::string(to_string(finding.kind)).c_str(),
                finding.seq != 0 ? ("seq " + std::to_string(finding.seq) + ": ").c_str() : "",
                finding.text.c_str());
  }
  std::printf("%llu samples, %s; %s; %llu finding%s\n",
              static_cast<unsigned long long>(report->samples),
              format_bytes(static_cast<double>(report->bytes)).c_str(),
              report->accounting.to_string().c_str(),
              static_cast<unsigned long long>(report->findings_total),
              report->findings_total == 1 ? "" : "s");
  return report->clean() ? kExitOk : kExitFailed;
}

int run_repair(const std::string& directory, const std::string& to, CommandContext& context) {
  Result<RepairReport> report = [&] {
    Progress progress("repair", 0, ProgressUnit::kItems);
    return repair_log_to(directory, to, progress_callback(progress, context));
  }();
  if (!report.ok()) return report_failure(report.status());
  uint64_t lost = 0;
  for (const GapRange& gap : report->lost) {
    std::printf("lost seq %llu to %llu: %s\n", static_cast<unsigned long long>(gap.from),
                static_cast<unsigned long long>(gap.to), gap.reason.c_str());
    lost += gap.to - gap.from + 1;
  }
  for (const std::string& note : report->notes) std::printf("%s\n", note.c_str());
  std::printf("%llu samples, %s copied to %s; %llu lost\n",
              static_cast<unsigned long long>(report->samples_copied),
              format_bytes(static_cast<double>(report->bytes_copied)).c_str(), to.c_str(),
              static_cast<unsigned long long>(lost));
  return lost == 0 ? kExitOk : kExitFailed;
}

struct Options {
  std::string directory;
  LogSelection selection;
  uint64_t seq = 0;
  uint64_t limit = 0;
  bool json = false;
  bool trainer_state = false;
  std::string output = "-";
  std::string format = "jsonl";
  std::string to;
};

}  // namespace

void add_log_command(CLI::App& app, CommandContext& context) {
  CLI::App* log = app.add_subcommand("log", "List, show, check and export a sample log");
  log->require_subcommand(1);
  log->footer(footer_with_examples(kExamples));
  auto options = std::make_shared<Options>();
  const auto add = [&](const char* name, const char* help) {
    CLI::App* command = log->add_subcommand(name, help);
    command->add_option("directory", options->directory, "log directory")->required();
    return command;
  };

  CLI::App* ls = add("ls", "One line a sample");
  add_selection_options(*ls, options->selection);
  ls->add_option("--limit", options->limit, "at most so many; 0 = all");
  ls->callback([&context, options] {
    context.exit_code = list_samples(options->directory, options->selection, options->limit);
  });

  CLI::App* show = add("show", "One sample in full, as JSON");
  show->add_option("seq", options->seq, "its sequence number")->required();
  show->callback(
      [&context, options] { context.exit_code = show_sample(options->directory, options->seq); });

  CLI::App* stats = add("stats", "Counts, sizes and delivery state");
  stats->add_flag("--json", options->json, "one JSON object");
  stats->callback(
      [&context, options] { context.exit_code = print_stats(options->directory, options->json); });

  CLI::App* verify = add("verify", "Read everything and say what is damaged");
  verify->callback(
      [&context, options] { context.exit_code = run_verify(options->directory, context); });

  CLI::App* export_command = add("export", "Write samples to a file");
  add_selection_options(*export_command, options->selection);
  export_command->add_flag("--trainer-state", options->trainer_state,
                           "the directory is a stopped trainer's state: everything it took");
  export_command->add_option("--output", options->output, "file; - = standard output");
  export_command
      ->add_option("--format", options->format,
                   "jsonl, or records: the exact stored bytes (docs/sample_log.md)")
      ->check(CLI::IsMember({"jsonl", "records"}));
  export_command->callback([&context, options] {
    if (options->trainer_state) {
      context.exit_code =
          export_taken(options->directory, options->output, options->format, context);
      return;
    }
    context.exit_code = export_samples(options->directory, options->selection, options->output,
                                       options->format, context);
  });

  CLI::App* repair = add("repair", "Copy everything that is intact into a new log");
  repair->add_option("--to", options->to, "directory of the new log; never in place")->required();
  repair->callback([&context, options] {
    context.exit_code = run_repair(options->directory, options->to, context);
  });
}

}  // namespace warproll
