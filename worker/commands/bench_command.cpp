#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "rollout/engine/engine_core.h"
#include "worker/commands/command.h"
#include "worker/commands/device_options.h"
#include "worker/node/serving_model.h"
#include "worker/terminal/exit_code.h"
#include "worker/terminal/stop_signal.h"
#include "worker/terminal/table.h"

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int32_t kBlockTokens = 16;

struct Options {
  std::string checkpoint;
  std::vector<int32_t> batches = {1, 8, 32};
  int32_t context = 64;  // prompt tokens
  int32_t tokens = 64;   // timed tokens a sequence
  ModelDeviceOptions device;
  bool quantise = false;
  bool json = false;
};

struct DecodeRow {
  int32_t batch = 0;
  double tokens_per_s = 0;
  double ms_per_step = 0;
  double prefill_tokens_per_s = 0;
};

// Prompts of random ids, all different, so that routing is as free as it is in use.
std::shared_ptr<const std::vector<int32_t>> prompt_of(int32_t sequence, int32_t length,
                                                      int32_t vocab_size) {
  std::vector<int32_t> ids;
  uint64_t state = static_cast<uint64_t>(sequence) * 2654435761u + 1;
  for (int32_t i = 0; i < length; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;  // Knuth's MMIX generator
    ids.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab_size)));
  }
  return std::make_shared<const std::vector<int32_t>>(std::move(ids));
}

Result<std::unique_ptr<EngineCore>> make_engine(const WeightSetPtr& weights, int32_t batch,
                                                const Options& options, const ModelRunner& runner) {
  EngineParts parts;
  parts.config.max_running_sequences = batch;
  parts.config.max_queued_requests = batch;
  parts.config.max_batch_tokens = std::max(512, batch);
  parts.config.block_tokens = kBlockTokens;
  parts.config.num_blocks = batch * ((options.context + options.tokens + 1) / kBlockTokens + 2);
  parts.backend =
      runner.make_backend(weights->config, backend_sizes(parts.config, weights->config));
  parts.weights = weights;
  WARPROLL_TRY_ASSIGN(engine, EngineCore::create(std::move(parts)));
  for (int32_t i = 0; i < batch; ++i) {
    SampleRequest request;
    request.request_id = static_cast<uint64_t>(i) + 1;
    request.prompt_ids = prompt_of(i, options.context, weights->config.vocab_size);
    request.sampling.max_tokens = options.tokens + 1;
    request.sampling.ignore_eos = true;
    WARPROLL_TRY(engine->submit(std::move(request)));
  }
  return engine;
}

Result<DecodeRow> measure(const WeightSetPtr& weights, int32_t batch, const Options& options,
                          const ModelRunner& runner, StopSignal& stop) {
  WARPROLL_TRY_ASSIGN(engine, make_engine(weights, batch, options, runner));
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  DecodeRow row{.batch = batch};
  Clock::time_point start = Clock::now();
  // Until every sequence has its first token: all prompts are in the KV cache.
  const auto all = static_cast<uint64_t>(batch);
  while (engine->stats().sampled_tokens < all) engine->step(Clock::now());
  const EngineStats before = engine->stats();
  row.prefill_tokens_per_s = static_cast<double>(before.forwarded_tokens) / seconds_since(start);
  start = Clock::now();
  while (engine->num_live() > 0) {
    if (stop.wait_until(Clock::now())) return aborted("stopped by a signal");
    engine->step(Clock::now());
  }
  const double seconds = seconds_since(start);
  const EngineStats after = engine->stats();
  row.tokens_per_s = static_cast<double>(after.sampled_tokens - before.sampled_tokens) / seconds;
  row.ms_per_step = 1000 * seconds / static_cast<double>(after.num_steps - before.num_steps);
  return row;
}

int run_decode(const Options& options, CommandContext& context) {
  const Result<ModelDevice> device = open_model_device(options.device);
  if (!device.ok()) return report_failure(device.status());
  const Result<WeightSetPtr> weights =
      load_weight_set(options.checkpoint, 1, options.quantise, *device);
  if (!weights.ok()) return report_failure(weights.status());
  if (options.context + options.tokens + 1 > (*weights)->config.max_position_embeddings) {
    return report_failure(invalid_argument(
        "--context " + std::to_string(options.context) + " and --tokens " +
        std::to_string(options.tokens) + " exceed the model's " +
        std::to_string((*weights)->config.max_position_embeddings) + " positions"));
  }
  Table table({"batch", "tokens/s", "ms a step", "prefill tokens/s"});
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const int32_t batch : options.batches) {
    const Result<DecodeRow> row = measure(*weights, batch, options, device->runner, context.stop);
    if (!row.ok()) return report_failure(row.status());
    table.add({std::to_string(row->batch), format_number(row->tokens_per_s, 0),
               format_number(row->ms_per_step, 3), format_number(row->prefill_tokens_per_s, 0)});
    rows.push_back({{"device", device->runner.device},
                    {"activations", to_string(device->runner.activations)},
                    {"batch", row->batch},
                    {"context", options.context},
                    {"tokens_per_s", row->tokens_per_s},
                    {"ms_per_step", row->ms_per_step},
                    {"prefill_tokens_per_s", row->prefill_tokens_per_s}});
  }
  std::fputs(options.json ? (rows.dump() + "\n").c_str() : table.to_string().c_str(), stdout);
  return kExitOk;
}

}  // namespace

void add_bench_command(CLI::App& app, CommandContext& context) {
  CLI::App* bench = app.add_subcommand("bench", "Measure parts of the worker");
  bench->require_subcommand(1);
  bench->footer(footer_with_examples(
      "  warproll bench decode --checkpoint ckpt/arith-v3 --batch 1,8,32 --context 64\n"
      "  warproll bench moe --dtype mxfp8 --batch 1,8,64 --check\n"));
  auto options = std::make_shared<Options>();
  CLI::App* decode = bench->add_subcommand("decode", "Tokens per second by batch size");
  decode->add_option("--checkpoint", options->checkpoint, "checkpoint directory")->required();
  decode->add_option("--batch", options->batches, "sequences decoded together: 1,8,32")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536));
  decode->add_option("--context", options->context, "prompt tokens of each")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24));
  decode->add_option("--tokens", options->tokens, "timed tokens of each")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24));
  add_device_options(*decode, options->device);
  decode->add_flag("--quantise-mxfp8", options->quantise, "quantise BF16 linear weights on load");
  decode->add_flag("--json", options->json, "JSON rows");
  decode->callback([&context, options] { context.exit_code = run_decode(*options, context); });
  add_bench_moe_command(*bench, context);
}

}  // namespace warproll
