#include "worker/commands/bench_sync.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "worker/commands/bench_sync_run.h"
#include "worker/commands/bench_sync_trainer.h"
#include "worker/commands/device_options.h"
#include "worker/config/nccl_variables.h"
#include "worker/terminal/exit_code.h"
#include "worker/terminal/table.h"

namespace warproll {
namespace {

double slowdown(const SyncRow& row) {
  return 1 - row.tokens_per_s_during / row.tokens_per_s_before;
}

nlohmann::ordered_json to_json(const SyncOptions& options, const SyncBench& bench,
                               const SyncRow& row) {
  nlohmann::ordered_json json = {{"transport", options.transport},
                                 {"from", options.over_nccl() ? options.from : "host"},
                                 {"stream", options.stream_of},
                                 {"device", bench.device()},
                                 {"same_gpu", options.trainer_gpu == options.device.gpu_index},
                                 {"weights", options.worker.model.weights},
                                 {"layers", options.worker.model.layers},
                                 {"quantise", options.worker.quantise_to_mxfp8},
                                 {"swap", bench.swap()},
                                 {"batch", options.worker.batch},
                                 {"context", options.worker.context},
                                 {"worker", row.worker},
                                 {"workers", options.workers},
                                 {"max_ctas", row.max_ctas},
                                 {"spare_sms", options.device.spare_sms},
                                 {"bucket_mb", options.bucket_mb},
                                 {"stream_bytes", row.stream_bytes},
                                 {"seconds", row.seconds},
                                 {"receive_s", row.receive_s},
                                 {"forming_s", row.forming_s},
                                 {"closing_s", row.closing_s},
                                 {"gb_per_s", row.gb_per_s}};
  if (row.bare_gb_per_s > 0) {
    json["bare_gb_per_s"] = row.bare_gb_per_s;
    json["bare_decoding_gb_per_s"] = row.bare_decoding_gb_per_s;
    json["ratio"] = row.gb_per_s / row.bare_gb_per_s;
  }
  json["stall_us"] = row.stall_us;
  json["stall_steps"] = row.stall_steps;
  json["stall_phase"] = to_string(row.stall_phase);
  json["noise_us"] = row.noise_us;
  json["flip_us"] = row.flip_us;
  json["median_step_us"] = row.median_step_us;
  json["tokens_per_s_before"] = row.tokens_per_s_before;
  json["tokens_per_s_during"] = row.tokens_per_s_during;
  json["tokens_per_s_receive"] = row.tokens_per_s_receive;
  if (row.tokens_per_s_during > 0) json["slowdown"] = slowdown(row);
  if (row.tokens_per_s_bare > 0) {
    json["bare_slowdown"] = 1 - row.tokens_per_s_bare / row.tokens_per_s_before;
  }
  json["restarted_sequences"] = row.restarted_sequences;
  json["digests_equal"] = row.digests_equal;
  return json;
}

std::vector<std::string> to_cells(const SyncRow& row) {
  const bool bare = row.bare_gb_per_s > 0;
  return {std::to_string(row.worker),
          std::to_string(row.max_ctas),
          format_number(static_cast<double>(row.stream_bytes) / 1e9, 2),
          format_number(row.seconds, 3),
          format_number(row.receive_s, 3),
          format_number(row.gb_per_s, 2),
          bare ? format_number(row.bare_gb_per_s, 2) : "-",
          bare ? format_number(row.gb_per_s / row.bare_gb_per_s, 3) : "-",
          format_number(row.stall_us, 0),
          format_number(row.stall_steps, 2),
          std::string(to_string(row.stall_phase)),
          format_number(row.tokens_per_s_before, 0),
          format_number(row.tokens_per_s_during, 0),
          row.tokens_per_s_during > 0 ? format_number(slowdown(row), 3) : "-",
          row.digests_equal ? "equal" : "DIFFER"};
}

int run_sync(const SyncOptions& options, CommandContext& context) {
  Table table({"worker", "CTAs", "GB", "seconds", "receive s", "GB/s", "bare GB/s", "ratio",
               "stall us", "steps", "in", "tokens/s", "during", "slowdown", "digests"});
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  bool all_equal = true;
  SyncBench bench(options, context.stop);
  const auto take = [&](const SyncRow& row) {
    table.add(to_cells(row));
    rows.push_back(to_json(options, bench, row));
    all_equal = all_equal && row.digests_equal;
  };
  Status status = bench.open();
  for (const int32_t max_ctas : options.max_ctas) {
    if (status.ok()) status = bench.run(max_ctas, take);
    if (!options.over_nccl()) break;  // nothing there depends on it
  }
  if (!status.ok() && rows.empty()) return report_failure(status);
  std::fputs(options.json ? (rows.dump() + "\n").c_str() : table.to_string().c_str(), stdout);
  if (!status.ok()) return report_failure(status);  // what was measured is printed
  return all_equal ? kExitOk : kExitFailed;
}

// Of a process that `bench sync` has started. Whoever asks is told why nobody serves.
int run_child(SyncLink& link, const char* what, const std::function<Status()>& serve) {
  const Status status = serve();
  if (status.ok()) return kExitOk;
  if (link.receive(std::chrono::seconds(10)).ok()) {
    static_cast<void>(link.send(failed_frame(SyncTask::kDraw, status)));
  }
  return report_failure(status.with_context(what));
}

int run_mate(const SyncOptions& options, CommandContext& context) {
  SyncLink link{UniqueFd(options.fd)};
  SyncBench bench(options, context.stop);
  return run_child(link, "a further worker of bench sync", [&] { return bench.serve_mate(link); });
}

int run_trainer(const SyncOptions& options) {
  SyncLink link{UniqueFd(options.fd)};
  return run_child(link, "the trainer of bench sync", [&]() -> Status {
    WARPROLL_TRY_ASSIGN(api, open_nccl(options.trainer_gpu));
    const StreamPlace place = options.from == "host" ? StreamPlace::kPinned : StreamPlace::kDevice;
    ArenaDevicePtr packed_on;
    if (options.sends_arena()) {
      WARPROLL_TRY_ASSIGN(device,
                          open_model_device({.device = "cuda", .gpu_index = options.trainer_gpu}));
      packed_on = device.arenas;
    }
    WARPROLL_TRY_ASSIGN(draw,
                        make_draw_stream(options.stream(place, options.trainer_gpu, packed_on)));
    return serve_sync_trainer(link, api, draw, nccl_variables());
  });
}

// What all processes have to know.
void add_shared_options(CLI::App& command, SyncOptions& options) {
  command
      .add_option("--random", options.worker.model.config_path,
                  "config.json of a model whose weights are drawn on the GPU")
      ->required();
  command.add_option("--weights", options.worker.model.weights, "mxfp8_experts or bf16")
      ->check(CLI::IsMember({"mxfp8_experts", "bf16"}))
      ->capture_default_str();
  command.add_option("--layers", options.worker.model.layers, "instead of the config's")
      ->check(CLI::Range(1, 1024));
  command.add_flag("--quantise-mxfp8", options.worker.quantise_to_mxfp8,
                   "BF16 is sent, the worker makes MXFP8 of it as it comes");
  command.add_option("--trainer-gpu", options.trainer_gpu, "where the trainer is")
      ->capture_default_str();
  command.add_option("--bucket-mb", options.bucket_mb, "of the stream")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      .add_option(
          "--stream", options.stream_of,
          "tensors: each worker lays them out; arena: the trainer has, they are received in place")
      ->check(CLI::IsMember({"tensors", "arena"}))
      ->capture_default_str();
  command.add_option("--from", options.from, "the trainer's weights: device, host (page-locked)")
      ->check(CLI::IsMember({"device", "host"}))
      ->capture_default_str();
}

// What a process with a worker has to know.
void add_worker_options(CLI::App& command, SyncOptions& options) {
  command.add_option("--max-ctas", options.max_ctas, "NCCL's thread blocks at most: 1,2,4,8")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command.add_option("--swap", options.worker.swap, "auto, two_arenas, host_staged")
      ->check(CLI::IsMember({"auto", "two_arenas", "host_staged"}))
      ->capture_default_str();
  command.add_option("--batch", options.worker.batch, "sequences that decode")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command.add_option("--context", options.worker.context, "prompt tokens of each")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command
      .add_option("--tokens", options.worker.tokens,
                  "that each has room for, then it starts anew; 0: a few thousand, so that no step "
                  "graph is new")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  command.add_option("--max-batch-tokens", options.worker.max_batch_tokens, "of a prefill step")
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
  command
      .add_option("--spare-sms", options.device.spare_sms,
                  "SMs of the GPU that decoding leaves to NCCL")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  add_device_options(command, options.device);
}

}  // namespace

void add_bench_sync_command(CLI::App& bench, CommandContext& context) {
  auto options = std::make_shared<SyncOptions>();
  options->device.batch_invariant = false;
  CLI::App* sync = bench.add_subcommand("sync", "New weights while a worker decodes");
  sync->footer(footer_with_examples(
      "  warproll bench sync --random configs/models/qwen3-30b-a3b.json --layers 3 --workers 2\n"
      "  warproll bench sync --random configs/models/qwen3-30b-a3b.json --weights bf16 "
      "--quantise-mxfp8 \\\n      --trainer-gpu 0 --gpu 1 --max-ctas 1,2,4,8,16 --json\n"
      "  warproll bench sync --random configs/models/qwen3-30b-a3b.json --layers 3 --transport "
      "none\n"
      "receive s: from the group's forming to the verified weights. GB/s: of the stream, digests, "
      "layout\nand verification included, forming and ending of the group not. bare: the same "
      "ncclBroadcasts alone,\nnothing decoding. stall: the longest time between two steps over the "
      "whole update, less the median\nstep. digests: of the weights and of their layout, against a "
      "cold start from the same weights.\n"));
  add_shared_options(*sync, *options);
  sync->add_option("--transport", options->transport,
                   "nccl: a trainer's process broadcasts; none: this process receives from its own "
                   "memory")
      ->check(CLI::IsMember({"nccl", "none"}))
      ->capture_default_str();
  add_worker_options(*sync, *options);
  sync->add_option("--workers", options->workers, "that share --gpu, each a process")
      ->check(CLI::Range(1, 8))
      ->capture_default_str();
  sync->add_option("--updates", options->updates, "for each of them")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sync->add_option("--baseline-ms", options->baseline_ms, "of decoding before each update")
      ->check(CLI::Range(1, 600'000))
      ->capture_default_str();
  sync->add_flag("--json", options->json, "JSON rows");
  sync->callback([&context, options] { context.exit_code = run_sync(*options, context); });
}

void add_bench_sync_trainer_command(CLI::App& bench, CommandContext& context) {
  auto options = std::make_shared<SyncOptions>();
  CLI::App* trainer = bench.add_subcommand("sync-trainer", "The trainer of `bench sync`");
  trainer->group("");  // hidden: `bench sync` starts it
  add_shared_options(*trainer, *options);
  trainer->add_option("--fd", options->fd, "the link's end")->required();
  trainer->callback([&context, options] { context.exit_code = run_trainer(*options); });
}

void add_bench_sync_worker_command(CLI::App& bench, CommandContext& context) {
  auto options = std::make_shared<SyncOptions>();
  options->device.batch_invariant = false;
  CLI::App* worker = bench.add_subcommand("sync-worker", "A further worker of `bench sync`");
  worker->group("");  // hidden: `bench sync` starts it
  add_shared_options(*worker, *options);
  add_worker_options(*worker, *options);
  worker->add_option("--index", options->worker.index, "of the worker")->required();
  worker->add_option("--fd", options->fd, "the link's end")->required();
  worker->callback([&context, options] { context.exit_code = run_mate(*options, context); });
}

}  // namespace warproll
