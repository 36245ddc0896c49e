#include "worker/commands/bench_sync_run.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "worker/config/nccl_variables.h"
#include "worker/terminal/stop_signal.h"

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kSettle(300);
constexpr uint64_t kSeeds[] = {1, 2};  // versions take turns: 1, 2, 1 ...

// Ranks that share a GPU: NCCL has to take them for as many hosts.
std::vector<std::pair<std::string, std::string>> shared_gpu_variables(const std::string& name) {
  return {{"NCCL_HOSTID", "warproll-sync-" + name}, {"NCCL_SOCKET_IFNAME", "lo"}};
}

std::vector<std::string> process_arguments(const SyncOptions& options, const char* command) {
  std::vector<std::string> arguments = {"bench",         command,
                                        "--random",      options.worker.model.config_path,
                                        "--weights",     options.worker.model.weights,
                                        "--trainer-gpu", std::to_string(options.trainer_gpu),
                                        "--bucket-mb",   std::to_string(options.bucket_mb),
                                        "--from",        options.from,
                                        "--stream",      options.stream_of};
  if (options.worker.model.layers > 0) {
    arguments.insert(arguments.end(), {"--layers", std::to_string(options.worker.model.layers)});
  }
  if (options.worker.quantise_to_mxfp8) arguments.emplace_back("--quantise-mxfp8");
  return arguments;
}

std::vector<std::string> mate_arguments(const SyncOptions& options, int32_t index) {
  std::vector<std::string> arguments = process_arguments(options, "sync-worker");
  arguments.insert(
      arguments.end(),
      {"--index", std::to_string(index), "--gpu", std::to_string(options.device.gpu_index),
       "--swap", options.worker.swap, "--batch", std::to_string(options.worker.batch), "--context",
       std::to_string(options.worker.context), "--tokens", std::to_string(options.worker.tokens),
       "--max-batch-tokens", std::to_string(options.worker.max_batch_tokens), "--max-ctas",
       std::to_string(options.most_ctas()), "--spare-sms",
       std::to_string(options.device.spare_sms)});
  return arguments;
}

}  // namespace

Status SyncBench::check() const {
  if (options_.over_nccl() && options_.device.device == "cpu") {
    return invalid_argument("--transport nccl needs a GPU, --device is cpu");
  }
  if (!options_.over_nccl() && options_.workers > 1) {
    return invalid_argument("--workers " + std::to_string(options_.workers) +
                            " with --transport none, wanted 1: nothing is sent");
  }
  if (options_.sends_arena() && options_.over_nccl() && options_.from == "host") {
    return invalid_argument(
        "--stream arena --from host: the trainer packs it on its GPU and sends it from "
        "there, wanted --from device");
  }
  if (options_.sends_arena() && options_.device.device == "cpu") {
    return invalid_argument(
        "--stream arena: what is packed is the arena of a worker on a GPU, --device is cpu");
  }
#ifndef WARPROLL_HAS_CUDA
  if (options_.over_nccl()) {
    return failed_precondition("--transport nccl: this build has no CUDA");
  }
#endif
  return ok_status();
}

Status SyncBench::open() {
  WARPROLL_TRY(check());
  if (options_.over_nccl()) WARPROLL_TRY(start_processes());
  WARPROLL_TRY_ASSIGN(device, open_model_device(options_.device));
  WARPROLL_TRY(device.on_gpu() || options_.device.device == "cpu"
                   ? ok_status()
                   : failed_precondition("no GPU; --device cpu measures a CPU"));
  SyncWorker::ColdLoad load;
  WARPROLL_TRY(open_feed(device, load));
  // What the others take of a GPU that is shared is taken before this one divides the rest.
  WARPROLL_TRY(feed_.offer(1, kSeeds[1], options_.max_ctas.front()).status());
  for (size_t i = 0; i < mate_processes_.size(); ++i) {
    const auto index = static_cast<int32_t>(i) + 1;
    SyncChild& process = *mate_processes_[i];
    WARPROLL_TRY(process.start(mate_arguments(options_, index),
                               shared_gpu_variables("worker-" + std::to_string(index))));
    mates_.push_back(std::make_unique<SyncMate>(process.link(), index));
    WARPROLL_TRY(mates_.back()->hello().status().with_context("worker " + std::to_string(index)));
  }
  transport_ = std::make_unique<TimedTransport>(feed_.transport);
  WARPROLL_TRY_ASSIGN(worker, SyncWorker::start(options_.worker, std::move(device), load, kSeeds[1],
                                                *transport_, stop_));
  worker_ = std::move(worker);
  for (const auto& mate : mates_) WARPROLL_TRY(worker_->add_mate(*mate));
  if (!worker_->memory_text().empty()) {
    std::fprintf(stderr, "%s\n", worker_->memory_text().c_str());
  }
  return ok_status();
}

Status SyncBench::serve_mate(SyncLink& link) {
  WARPROLL_TRY_ASSIGN(device, open_model_device(options_.device));
  if (!device.on_gpu()) return failed_precondition("no GPU");
  SyncWorker::ColdLoad load;
  WARPROLL_TRY(open_feed(device, load));
  transport_ = std::make_unique<TimedTransport>(feed_.transport);
  WARPROLL_TRY_ASSIGN(worker, SyncWorker::start(options_.worker, std::move(device), load, kSeeds[1],
                                                *transport_, stop_));
  worker_ = std::move(worker);
  return serve_sync_mate(link, *worker_, api_);
}

Status SyncBench::decode(bool on) {
  for (const auto& mate : mates_) WARPROLL_TRY(mate->decode(on));
  return on ? worker_->start_decoding() : worker_->stop_decoding();
}

Status SyncBench::run(int32_t max_ctas, const std::function<void(const SyncRow&)>& take) {
  double bare = 0, bare_decoding = 0, bare_tokens_per_s = 0;
  WARPROLL_TRY(decode(false));
  if (feed_.bare) {
    WARPROLL_TRY_ASSIGN(alone, feed_.bare(max_ctas));
    bare = alone.seconds;
    WARPROLL_TRY(decode(true));
    WARPROLL_TRY_ASSIGN(beside, feed_.bare(max_ctas));
    bare_decoding = beside.seconds;
    bare_tokens_per_s = worker_->steps().window(beside.begun, beside.ended).tokens_per_s;
  }
  for (int32_t i = 0; i < options_.updates; ++i) {
    WARPROLL_TRY_ASSIGN(rows, update(max_ctas));
    for (SyncRow& row : rows) {
      const double gb = static_cast<double>(row.stream_bytes) / 1e9;
      if (bare > 0) row.bare_gb_per_s = gb / bare;
      if (bare_decoding > 0) row.bare_decoding_gb_per_s = gb / bare_decoding;
      if (row.worker == 0) row.tokens_per_s_bare = bare_tokens_per_s;
      take(row);
    }
  }
  return ok_status();
}

Status SyncBench::start_processes() {
  std::vector<std::pair<std::string, std::string>> trainer;
  if (options_.trainer_gpu == options_.device.gpu_index || options_.workers > 1) {
    trainer = shared_gpu_variables("trainer");
    for (const auto& [key, value] : shared_gpu_variables("worker-0")) {
      ::setenv(key.c_str(), value.c_str(), 1);  // before NCCL is loaded
    }
  }
  for (int32_t i = 1; i < options_.workers; ++i) {
    mate_processes_.push_back(std::make_unique<SyncChild>());
  }
  return child_.start(process_arguments(options_, "sync-trainer"), trainer);
}

Status SyncBench::open_feed(const ModelDevice& device, SyncWorker::ColdLoad& load) {
  load = [model = options_.worker.model](uint64_t version, uint64_t seed,
                                         const LayoutFunction& layout, WeightArenas& arenas) {
    RandomModel random = model;
    random.seed = seed;
    return load_random_model(random, version, layout, arenas);
  };
  if (device.on_gpu()) {
    WARPROLL_TRY_ASSIGN(opened, open_nccl(device.gpu_index));
    api_ = opened;
  }
  if (options_.over_nccl()) {
    feed_ = nccl_feed(child_.link(), api_, options_.most_ctas(), nccl_variables(), mates_);
    return ok_status();
  }
  const StreamPlace place = device.on_gpu() ? StreamPlace::kPinned : StreamPlace::kCpu;
  WARPROLL_TRY_ASSIGN(draw,
                      make_draw_stream(options_.stream(place, device.gpu_index, device.arenas)));
  feed_ = memory_feed(draw, api_);
  if (place != StreamPlace::kCpu) return ok_status();
  load = [draw](uint64_t version, uint64_t seed, const LayoutFunction& layout,
                WeightArenas& arenas) -> Result<StagedWeightsPtr> {
    WARPROLL_TRY_ASSIGN(drawn, draw(version, seed));
    return load_drawn(drawn, layout, arenas);
  };
  return ok_status();
}

Result<std::vector<SyncRow>> SyncBench::update(int32_t max_ctas) {
  const uint64_t version = ++version_;
  SyncRowOrder order;
  order.seed = kSeeds[(version - 1) % 2];
  order.max_ctas = options_.over_nccl() ? max_ctas : 0;
  WARPROLL_TRY_ASSIGN(offer, feed_.offer(version, order.seed, max_ctas));
  order.stream_bytes = offer.stream_bytes;
  order.manifest_digest = offer.weight_digest;
  WARPROLL_TRY(decode(true));
  order.before.from = Clock::now();
  WARPROLL_TRY(
      worker_->run_until(order.before.from + std::chrono::milliseconds(options_.baseline_ms)));
  order.before.to = Clock::now();
  WARPROLL_TRY(worker_->update(std::move(offer)).status());
  worker_->settle();  // what is left of a group ends while the worker decodes on
  WARPROLL_TRY(worker_->run_until(Clock::now() + kSettle));
  order.settled = Clock::now();
  std::vector<SyncRow> rows = {row_of(*worker_, order)};
  for (const auto& mate : mates_) {
    WARPROLL_TRY_ASSIGN(row, mate->row(order));
    rows.push_back(row);
  }
  return rows;
}

}  // namespace warproll
