#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <set>

#include "rollout/model/weights.h"
#include "weights_sync/checkpoint_diff.h"
#include "weights_sync/checkpoint_quantise.h"
#include "weights_sync/checkpoint_verify.h"
#include "worker/commands/command.h"
#include "worker/node/serving_model.h"
#include "worker/terminal/exit_code.h"
#include "worker/terminal/progress.h"
#include "worker/terminal/table.h"

namespace warproll {
namespace {

constexpr const char* kExamples =
    "  warproll checkpoint inspect ckpt/v1 --tensors\n"
    "  warproll checkpoint verify ckpt/v1         # exit 1 when something is wrong\n"
    "  warproll checkpoint quantize ckpt/v1 --to ckpt/v1-mxfp8\n"
    "  warproll checkpoint diff ckpt/v1 ckpt/v2   # exit 1 when they differ\n";

std::string shape_text(const TensorInfo& tensor) {
  std::string text = "[";
  for (const int64_t dimension : tensor.shape) {
    text += (text.size() == 1 ? "" : ",") + std::to_string(dimension);
  }
  return text + "]";
}

std::string human_bytes(uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

void print_model(const ModelConfig& model) {
  std::printf(
      "%s: %d layers (%d MoE), hidden %d, vocab %d, heads %d/%d x %d, experts %d top-%d, "
      "intermediate %d%s\n",
      model.architecture.c_str(), model.num_layers, model.num_moe_layers(), model.hidden_size,
      model.vocab_size, model.num_heads, model.num_kv_heads, model.head_dim, model.num_experts,
      model.num_experts_per_tok, model.moe_intermediate_size,
      model.tie_word_embeddings ? ", tied head" : "");
}

int inspect(const std::string& directory, bool tensors) {
  const Result<Checkpoint> checkpoint = Checkpoint::open(directory);
  if (!checkpoint.ok()) return report_failure(checkpoint.status());
  const Result<ModelConfig> model = model_config_of(checkpoint->files());
  if (!model.ok()) return report_failure(model.status().with_context(directory));
  print_model(*model);
  std::map<std::string, std::pair<uint64_t, uint64_t>> dtypes;  // count, bytes
  Table table({"tensor", "dtype", "shape", "bytes", "shard"});
  for (size_t i = 0; i < checkpoint->tensors().size(); ++i) {
    const TensorInfo& tensor = checkpoint->tensors()[i];
    auto& [count, bytes] = dtypes[std::string(to_string(tensor.dtype))];
    ++count;
    bytes += tensor.bytes;
    table.add({tensor.name, std::string(to_string(tensor.dtype)), shape_text(tensor),
               std::to_string(tensor.bytes), std::string(checkpoint->shard_of(i))});
  }
  for (const auto& [dtype, totals] : dtypes) {
    std::printf("%-8s %6llu tensors  %s\n", dtype.c_str(),
                static_cast<unsigned long long>(totals.first), human_bytes(totals.second).c_str());
  }
  if (tensors) std::fputs(table.to_string().c_str(), stdout);
  return kExitOk;
}

int verify(const std::string& directory) {
  const Result<CheckpointReport> report = [&] {
    Progress progress("verify", 0, ProgressUnit::kBytes);
    return verify_checkpoint(directory, make_layout_function(false, std::nullopt),
                             progress.callback());
  }();
  if (!report.ok()) return report_failure(report.status());
  for (const std::string& problem : report->problems) std::printf("%s\n", problem.c_str());
  std::printf("%s: %llu tensors in %zu file%s, %s, weight_digest %s, %zu problem%s\n",
              directory.c_str(), static_cast<unsigned long long>(report->num_tensors),
              report->num_shards, report->num_shards == 1 ? "" : "s",
              human_bytes(report->bytes).c_str(), to_hex(report->weight_digest).c_str(),
              report->problems.size(), report->problems.size() == 1 ? "" : "s");
  return report->ok() ? kExitOk : kExitFailed;
}

int quantize(const std::string& directory, const std::string& to) {
  const Result<Checkpoint> checkpoint = Checkpoint::open(directory);
  if (!checkpoint.ok()) return report_failure(checkpoint.status());
  const Result<ModelConfig> model = model_config_of(checkpoint->files());
  if (!model.ok()) return report_failure(model.status().with_context(directory));
  const Result<std::vector<std::string>> names =
      mxfp8_export_tensors(*model, checkpoint->tensors());
  if (!names.ok()) return report_failure(names.status().with_context(directory));
  const std::set<std::string> selected(names->begin(), names->end());
  const Result<QuantiseSummary> summary = [&] {
    Progress progress("quantize", 0, ProgressUnit::kBytes);
    QuantiseOptions options;
    options.select = [&](const TensorInfo& tensor) { return selected.contains(tensor.name); };
    options.progress = progress.callback();
    return quantise_checkpoint(*checkpoint, to, options);
  }();
  if (!summary.ok()) return report_failure(summary.status());
  std::printf("%s: %zu tensors quantized, %zu copied, %s -> %s, weight_digest %s\n", to.c_str(),
              summary->num_quantised, summary->num_copied,
              human_bytes(summary->source_bytes).c_str(),
              human_bytes(summary->result_bytes).c_str(), to_hex(summary->weight_digest).c_str());
  return kExitOk;
}

int diff(const std::string& a_directory, const std::string& b_directory) {
  const Result<Checkpoint> a = Checkpoint::open(a_directory);
  if (!a.ok()) return report_failure(a.status());
  const Result<Checkpoint> b = Checkpoint::open(b_directory);
  if (!b.ok()) return report_failure(b.status());
  const CheckpointDiff difference = [&] {
    Progress progress("diff", 0, ProgressUnit::kBytes);
    return diff_checkpoints(*a, *b, progress.callback());
  }();
  for (const std::string& file : difference.different_files) {
    std::printf("%s differs\n", file.c_str());
  }
  Table table({"tensor", "difference", "a", "b", "elements", "max |a-b|"});
  for (const TensorDifference& tensor : difference.tensors) {
    const auto side = [](const TensorInfo& info) {
      return info.name.empty() ? std::string("-")
                               : std::string(to_string(info.dtype)) + shape_text(info);
    };
    char largest[32] = "-";
    if (tensor.max_abs_difference) {
      std::snprintf(largest, sizeof largest, "%.4g", *tensor.max_abs_difference);
    }
    table.add({tensor.name, std::string(to_string(tensor.kind)), side(tensor.a), side(tensor.b),
               std::to_string(tensor.num_different_elements), largest});
  }
  if (!difference.tensors.empty()) std::fputs(table.to_string().c_str(), stdout);
  std::printf("%llu tensors equal, %zu differ\n",
              static_cast<unsigned long long>(difference.num_equal_tensors),
              difference.tensors.size());
  return difference.equal() ? kExitOk : kExitFailed;
}

struct Options {
  std::string directory, other, to;
  bool tensors = false;
};

}  // namespace

void add_checkpoint_command(CLI::App& app, CommandContext& context) {
  CLI::App* checkpoint =
      app.add_subcommand("checkpoint", "Inspect, verify, quantize and compare checkpoints");
  checkpoint->require_subcommand(1);
  checkpoint->footer(footer_with_examples(kExamples));
  auto options = std::make_shared<Options>();
  const auto add = [&](const char* name, const char* help) {
    CLI::App* command = checkpoint->add_subcommand(name, help);
    command->add_option("directory", options->directory, "checkpoint directory")->required();
    return command;
  };
  CLI::App* inspect_command = add("inspect", "The model, its tensors and their types");
  inspect_command->add_flag("--tensors", options->tensors, "list every tensor");
  inspect_command->callback(
      [&context, options] { context.exit_code = inspect(options->directory, options->tensors); });
  add("verify", "Read every byte: files, shapes, NaN, digest")->callback([&context, options] {
    context.exit_code = verify(options->directory);
  });
  CLI::App* quantize_command = add("quantize", "Write an MXFP8 export (SGLang dialect)");
  quantize_command->add_option("--to", options->to, "directory to make")->required();
  quantize_command->callback(
      [&context, options] { context.exit_code = quantize(options->directory, options->to); });
  CLI::App* diff_command = add("diff", "Compare two checkpoints tensor by tensor");
  diff_command->add_option("other", options->other, "the other directory")->required();
  diff_command->callback(
      [&context, options] { context.exit_code = diff(options->directory, options->other); });
}

}  // namespace warproll
