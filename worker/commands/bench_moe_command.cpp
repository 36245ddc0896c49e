#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <stdexcept>

#include "kernels/bench/moe_bench.h"
#include "worker/commands/command.h"
#include "worker/terminal/exit_code.h"

namespace warproll {
namespace {

struct Options {
  MoeBenchOptions bench;
  std::vector<int32_t> shape = {2048, 768, 128, 8};
  bool json = false;
};

int run_moe(Options& options) {
#ifdef WARPROLL_HAS_CUDA
  options.bench.shape = {options.shape[0], options.shape[1], options.shape[2], options.shape[3]};
  try {
    if (!options.json) std::puts(moe_bench_header(options.bench).c_str());
    const auto rows = run_moe_bench(options.bench, [&options](const MoeBenchRow& row) {
      if (options.json) return;
      std::puts(moe_bench_line(row).c_str());
      std::fflush(stdout);
    });
    if (options.json) std::fputs(moe_bench_json(options.bench, rows).c_str(), stdout);
    return kExitOk;
  } catch (const std::invalid_argument& error) {
    return report_failure(invalid_argument(error.what()));
  } catch (const std::runtime_error& error) {  // CudaError: no device, no memory
    return report_failure(unavailable(error.what()));
  }
#else
  (void)options;
  return report_failure(
      unavailable("bench moe wants a GPU, and this warproll was built without CUDA; configure with "
                  "--preset cuda"));
#endif
}

}  // namespace

void add_bench_moe_command(CLI::App& bench, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* moe =
      bench.add_subcommand("moe", "One MoE layer on this GPU: us, TB/s, ratio to the floor");
  moe->footer(
      footer_with_examples("  warproll bench moe --dtype mxfp8,bf16 --batch 1,8,64 --router\n"
                           "  warproll bench moe --path auto,literal --routing zipf --json\n"));
  MoeBenchOptions& o = options->bench;
  const auto list = [moe](const char* name, auto& value, const char* what) {
    return moe->add_option(name, value, what)->delimiter(',')->capture_default_str();
  };
  list("--path", o.paths, "auto, literal, dedup, expert_centric");
  list("--dtype", o.dtypes, "weights: bf16, mxfp8, fp8_block");
  list("--routing", o.routings, "uniform, zipf, same");
  list("--batch", o.batches, "tokens")->check(CLI::Range(1, 8192));
  list("--shape", options->shape, "H,I,E,K")->expected(4);
  moe->add_option("--layers", o.num_layers, "weights in rotation, so that L2 is cold")
      ->capture_default_str();
  moe->add_option("--replays", o.num_replays, "graph replays; the median counts")
      ->capture_default_str();
  moe->add_option("--seed", o.seed, "of weights, activations and routes")->capture_default_str();
  moe->add_flag("--router", o.router, "what the router adds before auto");
  moe->add_flag("--parts", o.parts, "gate_up and down by themselves too");
  moe->add_flag("--check", o.check, "compare with an F64 oracle, the first 16 tokens");
  moe->add_flag("--json", options->json, "JSON instead of the table");
  moe->callback([&context, options] { context.exit_code = run_moe(*options); });
}

}  // namespace warproll
