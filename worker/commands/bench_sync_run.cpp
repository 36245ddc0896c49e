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
constexpr std::chrono::milliseconds kSettle(200);
constexpr uint64_t kSeeds[] = {1, 2};  // versions take turns: 1, 2, 1 ...

// Two ranks on one GPU: NCCL has to take them for two hosts.
std::vector<std::pair<std::string, std::string>> one_gpu_variables(const char* name) {
  return {{"NCCL_HOSTID", std::string("warproll-sync-") + name}, {"NCCL_SOCKET_IFNAME", "lo"}};
}

std::vector<std::string> trainer_arguments(const SyncOptions& options) {
  std::vector<std::string> arguments = {"bench",         "sync-trainer",
                                        "--random",      options.worker.model.config_path,
                                        "--weights",     options.worker.model.weights,
                                        "--trainer-gpu", std::to_string(options.trainer_gpu),
                                        "--bucket-mb",   std::to_string(options.bucket_mb),
                                        "--from",        options.from};
  if (options.worker.model.layers > 0) {
    arguments.insert(arguments.end(), {"--layers", std::to_string(options.worker.model.layers)});
  }
  if (options.worker.quantise_to_mxfp8) arguments.emplace_back("--quantise-mxfp8");
  return arguments;
}

}  // namespace

Status SyncBench::open() {
  const bool cpu = options_.device.device == "cpu";
  if (cpu && options_.over_nccl()) {
    return invalid_argument("--transport nccl needs a GPU, --device is cpu");
  }
  if (options_.over_nccl()) WARPROLL_TRY(start_trainer());
  WARPROLL_TRY_ASSIGN(device, open_model_device(options_.device));
  WARPROLL_TRY(device.on_gpu() || cpu ? ok_status()
                                      : failed_precondition("no GPU; --device cpu measures a CPU"));
  SyncWorker::ColdLoad load;
  WARPROLL_TRY(open_feed(device, load));
  // What the trainer takes of a GPU that it shares is taken before the worker divides the rest.
  WARPROLL_TRY(feed_.offer(1, kSeeds[1], options_.max_ctas.front()).status());
  transport_ = std::make_unique<TimedTransport>(feed_.transport);
  WARPROLL_TRY_ASSIGN(worker, SyncWorker::start(options_.worker, std::move(device), load, kSeeds[1],
                                                *transport_, stop_));
  worker_ = std::move(worker);
  if (!worker_->memory_text().empty()) {
    std::fprintf(stderr, "%s\n", worker_->memory_text().c_str());
  }
  return ok_status();
}

Status SyncBench::run(int32_t max_ctas, const std::function<void(const SyncRow&)>& take) {
  double bare = 0, bare_decoding = 0;
  WARPROLL_TRY(worker_->stop_decoding());
  if (feed_.bare_seconds) {
    WARPROLL_TRY_ASSIGN(seconds, feed_.bare_seconds(max_ctas));
    bare = seconds;
    WARPROLL_TRY(worker_->start_decoding());
    WARPROLL_TRY_ASSIGN(beside, feed_.bare_seconds(max_ctas));
    bare_decoding = beside;
  }
  for (int32_t i = 0; i < options_.updates; ++i) {
    WARPROLL_TRY_ASSIGN(row, update(max_ctas));
    const double gb = static_cast<double>(row.stream_bytes) / 1e9;
    if (bare > 0) row.bare_gb_per_s = gb / bare;
    if (bare_decoding > 0) row.bare_decoding_gb_per_s = gb / bare_decoding;
    take(row);
  }
  return ok_status();
}

Status SyncBench::start_trainer() {
#ifndef WARPROLL_HAS_CUDA
  return failed_precondition("--transport nccl: this build has no CUDA");
#endif
  std::vector<std::pair<std::string, std::string>> theirs;
  if (options_.trainer_gpu == options_.device.gpu_index) {
    theirs = one_gpu_variables("trainer");
    for (const auto& [key, value] : one_gpu_variables("worker")) {
      ::setenv(key.c_str(), value.c_str(), 1);  // before NCCL is loaded
    }
  }
  return child_.start(trainer_arguments(options_), theirs);
}

Status SyncBench::open_feed(const ModelDevice& device, SyncWorker::ColdLoad& load) {
  load = [model = options_.worker.model](uint64_t version, uint64_t seed,
                                         const LayoutFunction& layout, WeightArenas& arenas) {
    RandomModel random = model;
    random.seed = seed;
    return load_random_model(random, version, layout, arenas);
  };
  std::shared_ptr<NcclApi> api;
  if (device.on_gpu()) {
    WARPROLL_TRY_ASSIGN(opened, open_nccl(device.gpu_index));
    api = opened;
  }
  if (options_.over_nccl()) {
    const int32_t most = *std::max_element(options_.max_ctas.begin(), options_.max_ctas.end());
    feed_ = nccl_feed(child_.link(), api, most, nccl_variables());
    return ok_status();
  }
  const StreamPlace place = device.on_gpu() ? StreamPlace::kPinned : StreamPlace::kCpu;
  WARPROLL_TRY_ASSIGN(draw, make_draw_stream(options_.stream(place, device.gpu_index)));
  feed_ = memory_feed(draw, api);
  if (place != StreamPlace::kCpu) return ok_status();
  load = [draw](uint64_t version, uint64_t seed, const LayoutFunction& layout,
                WeightArenas& arenas) -> Result<StagedWeightsPtr> {
    WARPROLL_TRY_ASSIGN(drawn, draw(version, seed));
    return load_drawn(drawn, layout, arenas);
  };
  return ok_status();
}

Result<SyncRow> SyncBench::update(int32_t max_ctas) {
  const uint64_t version = ++version_;
  const uint64_t seed = kSeeds[(version - 1) % 2];
  WARPROLL_TRY_ASSIGN(offer, feed_.offer(version, seed, max_ctas));
  const uint64_t stream_bytes = offer.stream_bytes;
  const Digest manifest_digest = offer.weight_digest;
  WARPROLL_TRY(worker_->start_decoding());
  SyncSpan before;
  before.from = Clock::now();
  WARPROLL_TRY(worker_->run_until(before.from + std::chrono::milliseconds(options_.baseline_ms)));
  before.to = Clock::now();
  WARPROLL_TRY_ASSIGN(done, worker_->update(std::move(offer)));
  WARPROLL_TRY(worker_->run_until(Clock::now() + kSettle));
  SyncRow row = make_sync_row(done, worker_->steps(), before, Clock::now(), options_.over_nccl());
  row.max_ctas = options_.over_nccl() ? max_ctas : 0;
  row.stream_bytes = stream_bytes;
  const ColdDigests cold = worker_->cold_digests(seed);
  row.digests_equal = done.weight_digest == cold.weight && done.layout_digest == cold.layout &&
                      done.receive.bytes == stream_bytes &&
                      (options_.worker.quantise_to_mxfp8 || done.weight_digest == manifest_digest);
  return row;
}

}  // namespace warproll
