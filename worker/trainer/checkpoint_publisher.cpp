#include "worker/trainer/checkpoint_publisher.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "weights_sync/checkpoint_writer.h"
#include "weights_sync/directory_transport.h"
#include "weights_sync/nccl/nccl_source.h"
#include "weights_sync/tcp_transport.h"
#include "worker/config/nccl_variables.h"

namespace warproll {
namespace {

constexpr int64_t kRetryMs = 2000;  // pause after an update that was aborted

Result<OfferedCheckpoint> prepare(const std::string& directory, uint64_t version,
                                  uint64_t bucket_bytes) {
  WARPROLL_TRY_ASSIGN(checkpoint, Checkpoint::open(directory));
  Result<Manifest> manifest = make_manifest(checkpoint, version, bucket_bytes);
  if (!manifest.ok()) return manifest.status().with_context(directory);
  OfferedCheckpoint offered;
  offered.checkpoint = std::make_shared<const Checkpoint>(std::move(checkpoint));
  offered.manifest = std::make_shared<const Manifest>(std::move(manifest).value());
  return offered;
}

Result<size_t> load_progress(const std::string& path, size_t num_checkpoints) {
  std::ifstream file(path);
  if (!file) return size_t{0};
  const nlohmann::json progress = nlohmann::json::parse(file, nullptr, false);
  if (!progress.is_object() || !progress.contains("committed") ||
      !progress["committed"].is_number_unsigned()) {
    return data_loss(path + ": wanted {\"committed\": N}");
  }
  const auto committed = progress["committed"].get<size_t>();
  if (committed > num_checkpoints) {
    return failed_precondition(
        path + ": " + std::to_string(committed) +
        " checkpoints were published before, checkpoints.publish names only " +
        std::to_string(num_checkpoints));
  }
  return committed;
}

}  // namespace

CheckpointPublisher::CheckpointPublisher(const TrainerConfig& config,
                                         std::unique_ptr<BroadcastSource> source,
                                         std::string state_path, size_t num_committed)
    : config_(config.checkpoints),
      source_(std::move(source)),
      state_path_(std::move(state_path)),
      num_committed_(num_committed) {}

Result<std::unique_ptr<CheckpointPublisher>> CheckpointPublisher::open(
    const TrainerConfig& config, ZmqContext& context, std::optional<CurveServer> curve) {
  std::unique_ptr<BroadcastSource> source;
  if (config.checkpoints.transport == "directory") {
    WARPROLL_TRY_ASSIGN(directory, VersionDirectory::open(config.checkpoints.directory));
    source = std::make_unique<DirectorySource>(std::move(directory));
  } else if (config.checkpoints.transport == "nccl") {
    const auto api = open_nccl(static_cast<int32_t>(config.checkpoints.nccl_device));
    WARPROLL_TRY(api.status().with_context("checkpoints.transport nccl"));
    NcclSourceOptions options;
    options.max_ctas = static_cast<int32_t>(config.checkpoints.nccl_max_ctas);
    options.nccl_variables = nccl_variables();
    source = std::make_unique<NcclSource>(*api, options);
  } else {
    WARPROLL_TRY_ASSIGN(tcp,
                        TcpSource::start(context, {.endpoint = config.checkpoints.tcp_bind,
                                                   .advertise = config.checkpoints.tcp_advertise,
                                                   .curve = std::move(curve),
                                                   .insecure = config.curve.insecure}));
    source = std::move(tcp);
  }
  const std::string state_path = config.state_directory + "/published.json";
  WARPROLL_TRY_ASSIGN(committed, load_progress(state_path, config.checkpoints.publish.size()));
  return std::unique_ptr<CheckpointPublisher>(
      new CheckpointPublisher(config, std::move(source), state_path, committed));
}

uint64_t CheckpointPublisher::version_of(size_t index) const {
  return static_cast<uint64_t>(config_.first_version) + index;
}

Result<UpdateOffer> CheckpointPublisher::offer(const OfferedCheckpoint& offered) {
  WARPROLL_TRY_ASSIGN(route, source_->offer(offered));
  UpdateOffer offer;
  offer.weight_version = offered.manifest->weight_version;
  offer.weight_digest = offered.manifest->weight_digest;
  offer.manifest = encode_manifest(*offered.manifest);
  offer.stream_bytes = offered.manifest->stream_bytes();
  offer.routes = {route};
  return offer;
}

Status CheckpointPublisher::save_progress() {
  unsaved_ = true;
  WARPROLL_TRY(
      write_text_file(state_path_, nlohmann::json{{"committed", num_committed_}}.dump() + "\n"));
  unsaved_ = false;
  return ok_status();
}

Result<bool> CheckpointPublisher::adopt_current(Broadcaster& broadcaster, int64_t now_ms) {
  if (config_.publish.empty()) return false;
  if (num_committed_ == 0) num_committed_ = 1;  // the first is what the workers start on
  const size_t index = num_committed_ - 1;
  WARPROLL_TRY_ASSIGN(offered,
                      prepare(config_.publish[index], version_of(index), config_.bucket_bytes()));
  WARPROLL_TRY_ASSIGN(current, offer(offered));
  WARPROLL_TRY(broadcaster.adopt(std::move(current), now_ms));
  WARPROLL_TRY(save_progress());
  return true;
}

void CheckpointPublisher::start_preparing(size_t index) {
  preparing_ = index;
  prepared_ = std::async(std::launch::async, prepare, config_.publish[index], version_of(index),
                         config_.bucket_bytes());
}

Result<std::optional<uint64_t>> CheckpointPublisher::advance(Broadcaster& broadcaster,
                                                             uint64_t taken_samples,
                                                             int64_t now_ms) {
  if (unsaved_) WARPROLL_TRY(save_progress());
  if (begun_.has_value() && !broadcaster.has_pending()) {  // decided
    if (broadcaster.target_version() == version_of(*begun_)) {
      num_committed_ = *begun_ + 1;
      // The one before stays on offer for a rollback of the fleet.
      if (*begun_ >= 2) source_->withdraw(version_of(*begun_ - 2));
    } else {
      retry_at_ms_ = now_ms + kRetryMs;
    }
    begun_.reset();
    WARPROLL_TRY(save_progress());
  }
  const size_t next = num_committed_;
  const bool due = taken_samples >= next * static_cast<uint64_t>(config_.every_samples);
  if (!preparing_.has_value() && !begun_.has_value() && next < config_.publish.size() && due &&
      next > 0 && now_ms >= retry_at_ms_) {
    start_preparing(next);
  }
  // One update at a time: the next one begins when every live worker serves the last.
  if (!preparing_.has_value() || !broadcaster.converged() ||
      prepared_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    return std::optional<uint64_t>();
  }
  const size_t index = *preparing_;
  preparing_.reset();
  WARPROLL_TRY_ASSIGN(offered, prepared_.get());
  WARPROLL_TRY_ASSIGN(update, offer(offered));
  WARPROLL_TRY(broadcaster.begin_update(std::move(update), now_ms));
  begun_ = index;
  return std::optional<uint64_t>(version_of(index));
}

}  // namespace warproll
