#include "weights_sync/update_work.h"

#include <algorithm>
#include <utility>

namespace warproll {
namespace {
using Clock = std::chrono::steady_clock;

// Place + 1; 0 = not among them.
int32_t rank_of(const std::string& worker, const std::vector<std::string>& participants) {
  const auto found = std::find(participants.begin(), participants.end(), worker);
  if (found == participants.end()) return 0;
  return static_cast<int32_t>(found - participants.begin()) + 1;
}

}  // namespace

BroadcastTransport* UpdateWork::transport(const std::string& name) const {
  for (BroadcastTransport* each : options_.transports) {
    if (each->name() == name) return each;
  }
  return nullptr;
}

std::string UpdateWork::transport_names() const {
  std::string names;
  for (const BroadcastTransport* each : options_.transports) {
    names += (names.empty() ? "" : ", ") + std::string(each->name());
  }
  return names;
}

Status UpdateWork::want_current(const UpdateId& id) const {
  if (current_ && current_->begin.id == id) return ok_status();
  return aborted("the update of version " + std::to_string(id.weight_version) + " was discarded");
}

Status UpdateWork::check(const UpdateBegin& begin) {
  current_.reset();
  BroadcastTransport* const transport = this->transport(begin.transport);
  if (transport == nullptr) {
    return invalid_argument("transport '" + begin.transport + "', this worker has " +
                            transport_names());
  }
  WARPROLL_TRY(transport->check(begin));
  WARPROLL_TRY_ASSIGN(packed, transport->packed_arena(begin));
  if (packed && options_.device && !options_.device->in_device_memory()) {
    return invalid_argument(
        "packed arena: this worker keeps its weights in host memory (weights.swap host_staged), "
        "wanted a stream of tensors (checkpoints.nccl_stream tensors)");
  }
  WARPROLL_TRY_ASSIGN(
      staging,
      WeightStaging::plan(begin, options_.layout, static_cast<bool>(options_.golden_gate), packed));
  current_.emplace();
  current_->begin = begin;
  current_->begin.manifest.clear();
  current_->transport = transport;
  current_->staging.emplace(std::move(staging));
  return ok_status();
}

StandbyAnswer UpdateWork::acquire(const UpdateId& id) {
  StandbyAnswer answer;
  if (Status status = want_current(id); !status.ok()) {
    answer.failure = status;
    return answer;
  }
  auto standby = arenas_.acquire_standby(current_->staging->arena_bytes());
  if (standby.ok()) {
    current_->standby.emplace(std::move(*standby));
    answer.acquired = true;
    return answer;
  }
  if (standby.status().code() != StatusCode::kUnavailable) {
    answer.failure = standby.status();
    return answer;
  }
  const StandbyHolders holders = arenas_.standby_holders();
  answer.pinned_sequences = options_.pinned_sequences
                                ? options_.pinned_sequences(holders.weight_version)
                                : holders.num_holders;
  return answer;
}

Status UpdateWork::receive(const UpdateStart& start, Clock::time_point deadline,
                           const Cancellation& cancellation) {
  const UpdateId& id = start.id;
  WARPROLL_TRY(want_current(id));
  WeightStaging& staging = *current_->staging;
  const Clock::time_point started = Clock::now();
  WARPROLL_TRY(staging.open(std::move(*current_->standby)));
  current_->standby.reset();
  received_bytes_ = 0;
  total_bytes_ = staging.stream_bytes();
  receiving_version_ = id.weight_version;
  const StreamSink sink = [&](uint64_t offset, std::span<const std::byte> bytes) {
    received_bytes_ += bytes.size();
    all_received_bytes_ += bytes.size();
    return staging.write(offset, bytes);
  };
  ReceiveRequest request{id, current_->begin.source, current_->begin.server_key, deadline};
  request.participants = start.participants;
  request.nccl_unique_id = start.nccl_unique_id;
  request.rank = rank_of(options_.protocol.producer_id_hex, start.participants);
  request.packed = staging.packed();
  request.arena = staging.arena();
  if (options_.device) {
    request.device_sink = [&](uint64_t offset, std::span<const std::byte> bytes, void* stream) {
      received_bytes_ += bytes.size();
      all_received_bytes_ += bytes.size();
      return staging.write_device(offset, bytes, stream);
    };
  }
  const Status status = attempt([&] {
    return current_->transport->receive(request, staging.manifest(), sink, cancellation);
  });
  receiving_version_ = 0;
  current_->received_bytes = received_bytes_;
  current_->receive_ms = static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - started).count());
  return status;
}

Result<VerifiedWeights> UpdateWork::verify(const UpdateId& id) {
  WARPROLL_TRY(want_current(id));
  WARPROLL_TRY_ASSIGN(staged, current_->staging->finish(options_.golden_gate));
  current_->staged = std::move(staged);
  current_->staging.reset();
  return VerifiedWeights{current_->staged->weight_digest, current_->staged->layout_digest,
                         current_->received_bytes, current_->receive_ms};
}

Result<InstallReport> UpdateWork::install(const UpdateId& id) {
  WARPROLL_TRY(want_current(id));
  WARPROLL_TRY_ASSIGN(report, options_.install(current_->staged));
  arenas_.set_serving(std::move(current_->staged));
  current_.reset();
  return report;
}

Result<InstallReport> UpdateWork::roll_back() {
  const StagedWeightsPtr previous = arenas_.previous();
  if (!previous) return failed_precondition("the previous version is overwritten");
  WARPROLL_TRY_ASSIGN(report, options_.install(previous));
  WARPROLL_TRY(arenas_.swap_with_previous());
  return report;
}

void UpdateWork::discard(const UpdateId& id) {
  if (current_ && current_->begin.id == id) current_.reset();
}

UpdateProgress UpdateWork::progress() const {
  UpdateProgress progress;
  progress.weight_version = receiving_version_;
  progress.received_bytes = received_bytes_;
  progress.total_bytes = total_bytes_;
  return progress;
}

}  // namespace warproll
