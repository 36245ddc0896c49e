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
#include "worker/node/model_device.h"

namespace warproll {
namespace {

constexpr int64_t kRetryMs = 2000;  // pause after an update that was aborted

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

CheckpointPublisher::CheckpointPublisher(const TrainerConfig& config, std::string state_path,
                                         size_t num_committed)
    : config_(config.checkpoints),
      state_path_(std::move(state_path)),
      num_committed_(num_committed) {}

Status CheckpointPublisher::open_source(const TrainerConfig& config, ZmqContext& context,
                                        std::optional<CurveServer> curve) {
  if (config_.transport == "directory") {
    WARPROLL_TRY_ASSIGN(directory, VersionDirectory::open(config_.directory));
    source_ = std::make_unique<DirectorySource>(std::move(directory));
    return ok_status();
  }
  if (config_.transport == "nccl") {
    const auto gpu = static_cast<int32_t>(config_.nccl_device);
    const auto api = open_nccl(gpu);
    WARPROLL_TRY(api.status().with_context("checkpoints.transport nccl"));
    NcclSourceOptions options;
    options.max_ctas = static_cast<int32_t>(config_.nccl_max_ctas);
    options.nccl_variables = nccl_variables();
    auto source = std::make_unique<NcclSource>(*api, options);
    nccl_source_ = source.get();
    source_ = std::move(source);
    if (config_.nccl_stream == "tensors") return ok_status();
    const auto device = open_model_device({.device = "cuda", .gpu_index = gpu});
    WARPROLL_TRY(device.status().with_context("checkpoints.nccl_stream arena"));
    packer_ = std::make_unique<ArenaPacker>(device->arenas, config_.quantise == "mxfp8");
    return ok_status();
  }
  WARPROLL_TRY_ASSIGN(tcp, TcpSource::start(context, {.endpoint = config_.tcp_bind,
                                                      .advertise = config_.tcp_advertise,
                                                      .curve = std::move(curve),
                                                      .insecure = config.curve.insecure}));
  source_ = std::move(tcp);
  return ok_status();
}

Result<std::unique_ptr<CheckpointPublisher>> CheckpointPublisher::open(
    const TrainerConfig& config, ZmqContext& context, std::optional<CurveServer> curve) {
  const std::string state_path = config.state_directory + "/published.json";
  WARPROLL_TRY_ASSIGN(committed, load_progress(state_path, config.checkpoints.publish.size()));
  std::unique_ptr<CheckpointPublisher> publisher(
      new CheckpointPublisher(config, state_path, committed));
  WARPROLL_TRY(publisher->open_source(config, context, std::move(curve)));
  return publisher;
}

uint64_t CheckpointPublisher::version_of(size_t index) const {
  return static_cast<uint64_t>(config_.first_version) + index;
}

Result<CheckpointPublisher::Prepared> CheckpointPublisher::prepare(size_t index) const {
  const std::string& directory = config_.publish[index];
  WARPROLL_TRY_ASSIGN(opened, Checkpoint::open(directory));
  auto checkpoint = std::make_shared<const Checkpoint>(std::move(opened));
  Result<Manifest> manifest = make_manifest(*checkpoint, version_of(index), config_.bucket_bytes());
  WARPROLL_TRY(manifest.status().with_context(directory));
  if (config_.quantise == "mxfp8") {
    manifest->quantise = QuantiseRecipe::kMxfp8;
    manifest->weight_digest = {};  // of the export: the first worker that is ready says it
  }
  Prepared prepared;
  if (packer_) {
    Result<OfferedArena> arena = packer_->pack(*checkpoint, *manifest);
    WARPROLL_TRY(arena.status().with_context(directory));
    prepared.arena = std::move(*arena);
  }
  prepared.offered = {std::move(checkpoint),
                      prepared.arena ? prepared.arena->manifest
                                     : std::make_shared<const Manifest>(std::move(*manifest))};
  return prepared;
}

Result<UpdateOffer> CheckpointPublisher::offer(const Prepared& prepared) {
  const Manifest& manifest = *prepared.offered.manifest;
  UpdateOffer offer;
  offer.weight_version = manifest.weight_version;
  offer.weight_digest = manifest.weight_digest;
  offer.manifest = encode_manifest(manifest);
  if (prepared.arena) {
    offer.stream_bytes = prepared.arena->packed.bytes;
    offer.routes = {nccl_source_->offer_arena(*prepared.arena)};
    return offer;
  }
  WARPROLL_TRY_ASSIGN(route, source_->offer(prepared.offered));
  offer.stream_bytes = manifest.stream_bytes();
  offer.routes = {route};
  return offer;
}

// The one before stays on offer for a rollback of the fleet, unless its arena is wanted for the next.
void CheckpointPublisher::withdraw_before(size_t index) {
  const size_t kept = packer_ ? 1 : 2;
  if (index >= kept) source_->withdraw(version_of(index - kept));
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
  WARPROLL_TRY_ASSIGN(prepared, prepare(index));
  WARPROLL_TRY_ASSIGN(current, offer(prepared));
  WARPROLL_TRY(broadcaster.adopt(std::move(current), now_ms));
  WARPROLL_TRY(save_progress());
  return true;
}

void CheckpointPublisher::start_preparing(size_t index) {
  preparing_ = index;
  prepared_ = std::async(std::launch::async, [this, index] { return prepare(index); });
}

Result<std::optional<uint64_t>> CheckpointPublisher::advance(Broadcaster& broadcaster,
                                                             uint64_t taken_samples,
                                                             int64_t now_ms) {
  if (unsaved_) WARPROLL_TRY(save_progress());
  if (begun_.has_value() && !broadcaster.has_pending()) {  // decided
    if (broadcaster.target_version() == version_of(*begun_)) {
      num_committed_ = *begun_ + 1;
      withdraw_before(*begun_);
    } else {
      retry_at_ms_ = now_ms + kRetryMs;
      if (packer_) source_->withdraw(version_of(*begun_));  // it is packed again
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
  WARPROLL_TRY_ASSIGN(prepared, prepared_.get());
  WARPROLL_TRY_ASSIGN(update, offer(prepared));
  WARPROLL_TRY(broadcaster.begin_update(std::move(update), now_ms));
  begun_ = index;
  return std::optional<uint64_t>(version_of(index));
}

}  // namespace warproll
