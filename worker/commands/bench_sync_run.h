// A run of `warproll bench sync`: a trainer's process if one is wanted, a worker that decodes, and one
// update after the other, each a row. Thread: main.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weights_sync/arena_device.h"
#include "worker/commands/bench_sync_feed.h"
#include "worker/commands/bench_sync_link.h"
#include "worker/commands/bench_sync_mate.h"
#include "worker/commands/bench_sync_row.h"
#include "worker/commands/bench_sync_stream.h"
#include "worker/commands/bench_sync_worker.h"
#include "worker/node/model_device.h"

namespace warproll {

class StopSignal;

struct SyncOptions {
  SyncWorkerOptions worker;
  ModelDeviceOptions device;
  int32_t trainer_gpu = 0;
  std::vector<int32_t> max_ctas = {1};
  uint64_t bucket_mb = kDeviceBucketBytes >> 20;
  int32_t workers = 1;
  int32_t updates = 1;
  int32_t baseline_ms = 1000;
  std::string from = "device";
  std::string stream_of = "tensors";
  std::string transport = "nccl";
  bool json = false;
  int fd = -1;  // of the trainer's and a further worker's process

  [[nodiscard]] bool over_nccl() const { return transport == "nccl"; }
  [[nodiscard]] int32_t most_ctas() const {
    return *std::max_element(max_ctas.begin(), max_ctas.end());
  }
  [[nodiscard]] bool sends_arena() const { return stream_of == "arena"; }
  // device: of that GPU, for sends_arena().
  [[nodiscard]] StreamOptions stream(StreamPlace place, int32_t gpu, ArenaDevicePtr device) const {
    return {worker.model,
            place,
            gpu,
            bucket_mb << 20,
            worker.quantise_to_mxfp8,
            sends_arena() ? std::move(device) : nullptr};
  }
};

class SyncBench {
 public:
  SyncBench(const SyncOptions& options, StopSignal& stop) : options_(options), stop_(stop) {}

  Status open();
  // Of a further worker's process: until the first one has ended.
  Status serve_mate(SyncLink& link);
  // The ceiling, while nothing decodes and while something does; then the rows of `updates` updates, one
  // for each worker.
  Status run(int32_t max_ctas, const std::function<void(const SyncRow&)>& take);

  [[nodiscard]] const char* swap() const {
    return worker_->host_staged() ? "host_staged" : "two_arenas";
  }
  [[nodiscard]] const char* device() const { return worker_->on_gpu() ? "cuda" : "cpu"; }

 private:
  Status check() const;
  Status start_processes();
  Status open_feed(const ModelDevice& device, SyncWorker::ColdLoad& load);
  Status decode(bool on);
  Result<std::vector<SyncRow>> update(int32_t max_ctas);

  const SyncOptions options_;
  StopSignal& stop_;
  SyncChild child_;  // the trainer
  std::vector<std::unique_ptr<SyncChild>> mate_processes_;
  std::vector<std::unique_ptr<SyncMate>> mates_;
  std::shared_ptr<NcclApi> api_;
  SyncFeed feed_;
  std::unique_ptr<TimedTransport> transport_;
  std::unique_ptr<SyncWorker> worker_;
  uint64_t version_ = 1;
};

}  // namespace warproll
