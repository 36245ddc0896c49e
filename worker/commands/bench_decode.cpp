#include "worker/commands/bench_decode.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "rollout/engine/engine_core.h"
#include "worker/commands/decode_floor.h"
#include "worker/commands/device_options.h"
#include "worker/commands/literal_experts.h"
#include "worker/commands/random_prompt.h"
#include "worker/commands/route_injection.h"
#include "worker/node/serving_model.h"
#include "worker/terminal/exit_code.h"
#include "worker/terminal/stop_signal.h"
#include "worker/terminal/table.h"

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int32_t kWarmUpSteps = 4;  // graphs are captured in the first

struct Options {
  std::string checkpoint;
  RandomModel random;
  std::vector<int32_t> batches = {1, 8, 32};
  std::vector<int32_t> contexts = {64};
  std::vector<std::string> routings = {"free"};
  std::vector<std::string> moe_paths = {"auto"};
  int32_t tokens = 64;  // timed tokens a sequence
  int32_t block_tokens = 16;
  int32_t max_batch_tokens = 512;
  ModelDeviceOptions device;
  bool quantise = false;
  bool json = false;
};

struct DecodeCase {
  int32_t batch = 0;
  int32_t context = 0;  // prompt tokens
  bool uniform = false;
};
struct DecodeRow {
  std::vector<OpTime> ops;
  double tokens_per_s = 0;
  double ms_per_step = 0;
  double prefill_tokens_per_s = 0;
  double distinct_experts = 0;
  double context_tokens = 0;  // of all sequences, on the average of the timed steps
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Of a step: so many that prompts are prefilled beside a batch of decodes.
int32_t step_tokens(const DecodeCase& what, const Options& options) {
  return std::max(options.max_batch_tokens, 2 * what.batch);
}

// More than are timed: prompts that are prefilled first decode while the others are, and none may end
// before all have had their timed steps together.
int32_t tokens_of_each(const DecodeCase& what, const Options& options) {
  const int64_t prompts = int64_t{what.batch} * what.context;
  // By a step, unless what is left over does not fill a block: half of it is certain.
  const int64_t prefilled = step_tokens(what, options) - what.batch;
  return static_cast<int32_t>(2 * (prompts + prefilled - 1) / prefilled) + kWarmUpSteps +
         options.tokens + 2;
}

Result<std::unique_ptr<EngineCore>> make_engine(const WeightSetPtr& weights, const DecodeCase& what,
                                                const Options& options, const ModelRunner& runner,
                                                const std::shared_ptr<RouteCount>& routes,
                                                std::function<std::vector<OpTime>()>& op_times) {
  const int32_t tokens = tokens_of_each(what, options);
  EngineParts parts;
  parts.config.max_running_sequences = what.batch;
  parts.config.max_queued_requests = what.batch;
  parts.config.max_batch_tokens = step_tokens(what, options);
  parts.config.prefill_chunk_tokens = parts.config.max_batch_tokens;
  parts.config.max_context_tokens = what.context + tokens;
  parts.config.block_tokens = options.block_tokens;
  parts.config.num_blocks = what.batch * ((what.context + tokens) / options.block_tokens + 2);
  parts.backend =
      runner.make_backend(weights->config, backend_sizes(parts.config, weights->config));
  op_times = parts.backend.take_op_times;
  if (parts.backend.launch) {
    parts.backend = with_routing(std::move(parts.backend), weights->config, what.uniform, routes);
  }
  parts.weights = weights;
  WARPROLL_TRY_ASSIGN(engine, EngineCore::create(std::move(parts)));
  for (int32_t i = 0; i < what.batch; ++i) {
    SampleRequest request;
    request.request_id = static_cast<uint64_t>(i) + 1;
    request.prompt_ids = random_prompt(i, what.context, weights->config.vocab_size);
    request.sampling.max_tokens = tokens;
    request.sampling.ignore_eos = true;
    WARPROLL_TRY(engine->submit(std::move(request)));
  }
  return engine;
}

Result<DecodeRow> measure(const WeightSetPtr& weights, const DecodeCase& what,
                          const Options& options, const ModelRunner& runner, StopSignal& stop) {
  const auto routes = std::make_shared<RouteCount>();
  std::function<std::vector<OpTime>()> take_op_times;
  WARPROLL_TRY_ASSIGN(engine, make_engine(weights, what, options, runner, routes, take_op_times));
  DecodeRow row;
  Clock::time_point start = Clock::now();
  // Until a step samples a token of every sequence: all prompts are in the KV cache.
  const auto all = static_cast<uint64_t>(what.batch);
  for (uint64_t sampled = 0, of_step = 0; of_step < all;) {
    if (stop.wait_until(Clock::now())) return aborted("stopped by a signal");
    engine->step(Clock::now());
    of_step = engine->stats().sampled_tokens - sampled;
    sampled += of_step;
  }
  row.prefill_tokens_per_s =
      static_cast<double>(engine->stats().forwarded_tokens) / seconds_since(start);
  for (int32_t i = 0; i < kWarmUpSteps; ++i) engine->step(Clock::now());
  *routes = {};
  if (take_op_times) static_cast<void>(take_op_times());
  const EngineStats before = engine->stats();
  start = Clock::now();
  for (int32_t i = 0; i < options.tokens; ++i) {
    if (stop.wait_until(Clock::now())) return aborted("stopped by a signal");
    engine->step(Clock::now());
  }
  const double seconds = seconds_since(start);
  const uint64_t tokens = engine->stats().sampled_tokens - before.sampled_tokens;
  if (tokens != all * static_cast<uint64_t>(options.tokens))
    return internal_error("bench decode: a timed step had not all sequences");
  row.tokens_per_s = static_cast<double>(tokens) / seconds;
  row.ms_per_step = 1000 * seconds / options.tokens;
  row.context_tokens = static_cast<double>(all) * what.context +
                       static_cast<double>(before.sampled_tokens) + static_cast<double>(tokens) / 2;
  row.distinct_experts = routes->mean();
  if (take_op_times) row.ops = take_op_times();
  while (engine->num_live() > 0 && !stop.wait_until(Clock::now())) engine->step(Clock::now());
  return row;
}

// A row of the table and its JSON. On a CPU there is no floor to compare with.
void report(const Options& options, const ModelDevice& device, const WeightSet& weights,
            const DecodeCase& what, const std::string& moe_path, const DecodeRow& row, Table& table,
            nlohmann::ordered_json& rows) {
  nlohmann::ordered_json json = {
      {"device", device.runner.device},
      {"activations", to_string(device.runner.activations)},
      {"moe_path", moe_path},
      {"weights", options.random.config_path.empty() ? "checkpoint" : options.random.weights},
      {"routing", what.uniform ? "uniform" : "free"},
      {"batch_invariant", options.device.batch_invariant},
      {"batch", what.batch},
      {"context", what.context},
      {"tokens_per_s", row.tokens_per_s},
      {"ms_per_step", row.ms_per_step},
      {"prefill_tokens_per_s", row.prefill_tokens_per_s}};
  std::vector<std::string> cells = {moe_path,
                                    what.uniform ? "uniform" : "free",
                                    std::to_string(what.batch),
                                    std::to_string(what.context),
                                    format_number(row.tokens_per_s, 0),
                                    format_number(row.ms_per_step, 3),
                                    format_number(row.prefill_tokens_per_s, 0)};
  if (weights.device != nullptr) {
    const DecodeBytes bytes = decode_bytes(weights);
    const double floor = floor_seconds(bytes, row.distinct_experts);
    const double with_kv = floor_seconds_with_kv(bytes, row.distinct_experts, row.context_tokens);
    const double seconds = row.ms_per_step / 1000;
    json["distinct_experts"] = row.distinct_experts;
    json["floor_tokens_per_s"] = what.batch / floor;
    json["share"] = floor / seconds;
    json["share_with_kv"] = with_kv / seconds;
    for (const std::string& cell :
         {format_number(row.distinct_experts, 1), format_number(what.batch / floor, 0),
          format_number(floor / seconds, 3), format_number(with_kv / seconds, 3)})
      cells.push_back(cell);
  } else {
    cells.insert(cells.end(), 4, "-");
  }
  for (const OpTime& op : row.ops) {
    json["op_us"][op.name] = op.us;
    std::fprintf(stderr, "%-12s %9.1f us a step\n", op.name.c_str(), op.us);
  }
  table.add(std::move(cells));
  rows.push_back(std::move(json));
}

Result<std::vector<bool>> routings_of(const Options& options) {
  std::vector<bool> uniform;
  for (const std::string& routing : options.routings) {
    if (routing != "free" && routing != "uniform")
      return invalid_argument("--routing '" + routing + "', wanted free or uniform");
    uniform.push_back(routing == "uniform");
  }
  return uniform;
}

Status run_cases(const Options& options, CommandContext& context, Table& table,
                 nlohmann::ordered_json& rows) {
  WARPROLL_TRY_ASSIGN(routings, routings_of(options));
  WARPROLL_TRY_ASSIGN(device, open_model_device(options.device));
  WARPROLL_TRY(check_step_tokens(device, options.max_batch_tokens, "--max-batch-tokens"));
  WARPROLL_TRY_ASSIGN(weights,
                      options.checkpoint.empty()
                          ? load_random_weight_set(options.random, device)
                          : load_weight_set(options.checkpoint, 1, options.quantise, device));
  for (const std::string& moe_path : options.moe_paths) {
    ModelDeviceOptions with_path = options.device;
    with_path.moe_path = moe_path;
    WARPROLL_TRY_ASSIGN(path_device, open_model_device(with_path));
    WeightSetPtr path_weights = weights;
    if (moe_path == "literal") {
      WARPROLL_TRY_ASSIGN(with_rows, with_literal_experts(weights));
      path_weights = std::move(with_rows);
    }
    for (const int32_t prompt : options.contexts) {
      for (const int32_t batch : options.batches) {
        const int64_t tokens = int64_t{prompt} + tokens_of_each({batch, prompt}, options);
        if (tokens > weights->config.max_position_embeddings) {
          return invalid_argument("--context " + std::to_string(prompt) + " and --tokens " +
                                  std::to_string(options.tokens) + " of " + std::to_string(batch) +
                                  " sequences are " + std::to_string(tokens) +
                                  " positions, wanted at most the model's " +
                                  std::to_string(weights->config.max_position_embeddings));
        }
        for (const bool uniform : routings) {
          const DecodeCase what{batch, prompt, uniform};
          WARPROLL_TRY_ASSIGN(
              row, measure(path_weights, what, options, path_device.runner, context.stop));
          report(options, path_device, *weights, what, moe_path, row, table, rows);
        }
      }
    }
  }
  return ok_status();
}

int run_decode(const Options& options, CommandContext& context) {
  Table table({"moe path", "routing", "batch", "context", "tokens/s", "ms a step",
               "prefill tokens/s", "experts", "floor tokens/s", "share", "share with KV"});
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const Status status = run_cases(options, context, table, rows);
  if (!status.ok() && rows.empty()) return report_failure(status);
  std::fputs(options.json ? (rows.dump() + "\n").c_str() : table.to_string().c_str(), stdout);
  return status.ok() ? kExitOk : report_failure(status);  // what was measured is printed
}

}  // namespace

void add_bench_decode_command(CLI::App& bench, CommandContext& context) {
  auto options = std::make_shared<Options>();
  options->device.batch_invariant = false;
  CLI::App* decode = bench.add_subcommand("decode", "Tokens per second by batch and context");
  decode->footer(footer_with_examples(
      "  warproll bench decode --checkpoint ckpt/arith-v3 --batch 1,8,32 --context 64\n"
      "  warproll bench decode --random configs/models/qwen3-30b-a3b.json --batch 1,8,32,64 "
      "--context 1024\n      --routing uniform,free --max-batch-tokens 8192\n"
      "share: the time to read the weights a step needs (distinct experts and the rest) at 4.66 "
      "TB/s,\ndivided by the step's; with KV: the KV cache counted too.\n"));
  CLI::Option_group* what = decode->add_option_group("model", "exactly one of");
  what->add_option("--checkpoint", options->checkpoint, "checkpoint directory");
  what->add_option("--random", options->random.config_path,
                   "config.json of a model whose weights are drawn on the GPU");
  what->require_option(1);
  decode->add_option("--weights", options->random.weights, "of --random: mxfp8_experts or bf16")
      ->check(CLI::IsMember({"mxfp8_experts", "bf16"}))
      ->capture_default_str();
  decode->add_option("--layers", options->random.layers, "of --random, instead of its config's")
      ->check(CLI::Range(1, 1024));
  decode->add_option("--seed", options->random.seed, "of --random")->capture_default_str();
  const auto list = [&](const char* name, auto& values, const char* text) {
    return decode->add_option(name, values, text)->delimiter(',')->capture_default_str();
  };
  list("--batch", options->batches, "sequences decoded together: 1,8,32")
      ->check(CLI::Range(1, 65536));
  list("--context", options->contexts, "prompt tokens of each: 1024,8192")
      ->check(CLI::Range(1, 1 << 24));
  list("--routing", options->routings, "free, uniform (drawn experts, GPU)");
  list("--moe-path", options->moe_paths,
       "GPU: auto, warp_decode, expert_centric, literal (with random rows)");
  decode->add_option("--tokens", options->tokens, "timed tokens of each")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24));
  decode->add_option("--block-tokens", options->block_tokens, "of a KV block")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  decode->add_option("--max-batch-tokens", options->max_batch_tokens, "of a prefill step")
      ->capture_default_str()
      ->check(CLI::Range(1, 8192));
  add_device_options(*decode, options->device);
  decode->add_flag("--batch-invariant", options->device.batch_invariant,
                   "the same bits for prefill in any batch");
  decode->add_flag("--ops", options->device.time_ops,
                   "what each op takes, one after the other and without graphs (GPU)");
  decode->add_flag("--quantise-mxfp8", options->quantise, "quantise BF16 linear weights on load");
  decode->add_flag("--json", options->json, "JSON rows");
  decode->callback([&context, options] { context.exit_code = run_decode(*options, context); });
}

}  // namespace warproll
