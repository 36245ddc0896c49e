#include "weights_sync/nccl/nccl_transport.h"

#include <algorithm>
#include <utility>

#include "weights_sync/nccl/nccl_communicator.h"
#include "weights_sync/nccl/nccl_terms.h"
#include "weights_sync/nccl/staging_slots.h"

namespace warproll {
namespace {

Status check_group(const ReceiveRequest& request) {
  if (request.nccl_unique_id.empty()) {
    return invalid_argument("the Start has no NCCL id: the trainer formed no group");
  }
  if (request.rank < 1 || request.rank > static_cast<int64_t>(request.participants.size())) {
    return invalid_argument("rank " + std::to_string(request.rank) + " in a group of " +
                            std::to_string(request.participants.size()) + " workers");
  }
  return ok_status();
}

// The stream of one receive, bucket by bucket.
class BucketReceive {
 public:
  BucketReceive(NcclApi& api, NcclCommunicator& group, StagingSlots& slots,
                const Manifest& manifest, const StreamSink& sink, const DeviceSink& device_sink)
      : api_(api),
        group_(group),
        slots_(slots),
        manifest_(manifest),
        sink_(sink),
        device_sink_(device_sink) {}

  Status run() {
    const uint64_t num_buckets = manifest_.num_buckets();
    for (uint64_t i = 0; i < std::min<uint64_t>(2, num_buckets); ++i) WARPROLL_TRY(enqueue(i));
    for (uint64_t i = 0; i < num_buckets; ++i) {
      WARPROLL_TRY(take(i));
      if (i + 2 < num_buckets) WARPROLL_TRY(enqueue(i + 2));
      if (!device_sink_) WARPROLL_TRY(sink_(offset_of(i), {slot_of(i).pinned, bytes_of(i)}));
    }
    WARPROLL_TRY(group_.meet(slots_.word(), slots_.communication()));
    WARPROLL_TRY(api_.record(slots_.ended(), slots_.communication()));
    WARPROLL_TRY(group_.await(slots_.ended(), "the end of the stream"));
    WARPROLL_TRY(api_.record(slots_.ended(), slots_.processing()));
    return group_.await(slots_.ended(), "the work on the last bucket");
  }

 private:
  [[nodiscard]] StagingSlots::Slot& slot_of(uint64_t i) { return slots_.slot_of(i); }
  [[nodiscard]] uint64_t offset_of(uint64_t i) const { return i * manifest_.bucket_bytes; }
  [[nodiscard]] uint64_t bytes_of(uint64_t i) const { return manifest_.bytes_of_bucket(i); }
  [[nodiscard]] std::string name_of(uint64_t i) const {
    return "bucket " + std::to_string(i) + " of " + std::to_string(manifest_.num_buckets());
  }

  Status enqueue(uint64_t i) {
    StagingSlots::Slot& slot = slot_of(i);
    if (i >= 2) WARPROLL_TRY(api_.wait(slots_.communication(), slot.used));
    WARPROLL_TRY(group_.broadcast(slot.device, bytes_of(i), slots_.communication(), name_of(i)));
    return api_.record(slot.moved, slots_.communication());
  }

  // When the bucket is there: on to the device's sink, or to the host.
  Status take(uint64_t i) {
    StagingSlots::Slot& slot = slot_of(i);
    WARPROLL_TRY(group_.await(slot.moved, name_of(i)));
    if (device_sink_) {
      WARPROLL_TRY(device_sink_(offset_of(i), {slot.device, bytes_of(i)}, slots_.processing()));
      return api_.record(slot.used, slots_.processing());
    }
    WARPROLL_TRY(api_.copy(slot.pinned, slot.device, bytes_of(i), slots_.processing()));
    WARPROLL_TRY(api_.record(slot.used, slots_.processing()));
    return group_.await(slot.used, name_of(i) + ", copy to the host");
  }

  NcclApi& api_;
  NcclCommunicator& group_;
  StagingSlots& slots_;
  const Manifest& manifest_;
  const StreamSink& sink_;
  const DeviceSink& device_sink_;
};

}  // namespace

NcclTransport::NcclTransport(std::shared_ptr<NcclApi> api, NcclTransportOptions options)
    : api_(std::move(api)),
      options_(std::move(options)),
      terms_(nccl_terms(api_->version(), options_.max_ctas, options_.nccl_variables)) {}

NcclTransport::~NcclTransport() { settle(); }

void NcclTransport::settle() {
  if (closing_.joinable()) closing_.join();
}

// On a thread of its own: it takes NCCL half a second, in which the weights can be verified.
void NcclTransport::close(std::unique_ptr<NcclCommunicator> group) {
  closing_ = std::thread([api = api_, group = std::move(group)]() mutable {
    if (api->bind_thread().ok()) group->close();
    group.reset();
  });
}

Status NcclTransport::check(const UpdateBegin& begin) const {
  return check_nccl_terms(decode_nccl_terms(begin.source), terms_);
}

Status NcclTransport::receive(const ReceiveRequest& request, const Manifest& manifest,
                              const StreamSink& sink, const Cancellation& cancellation) {
  ++stats_.receives;
  const auto run = [&]() -> Status {
    WARPROLL_TRY(check_group(request));
    settle();  // groups form one after the other
    WARPROLL_TRY(api_->bind_thread());
    const uint64_t slot_bytes = std::max<uint64_t>(
        kMinBucketBytes, std::min(manifest.bucket_bytes, manifest.stream_bytes()));
    WARPROLL_TRY(want_slots(slot_bytes, !request.device_sink));
    const Status status = receive_stream(request, manifest, sink, cancellation, *slots_);
    if (!slots_->drain(options_.ending)) {
      stats_.abandoned_bytes += 2 * slots_->slot_bytes();
      slots_.reset();
    }
    return status;
  };
  const Status status = run();
  if (!status.ok()) ++stats_.failed;
  return status;
}

Status NcclTransport::want_slots(uint64_t slot_bytes, bool with_pinned) {
  if (slots_ && slots_->slot_bytes() == slot_bytes && slots_->has_pinned() == with_pinned &&
      slots_->begin_again()) {
    return ok_status();
  }
  slots_.reset();
  WARPROLL_TRY_ASSIGN(slots, StagingSlots::make(api_, slot_bytes, with_pinned));
  slots_ = std::move(slots);
  return ok_status();
}

Status NcclTransport::receive_stream(const ReceiveRequest& request, const Manifest& manifest,
                                     const StreamSink& sink, const Cancellation& cancellation,
                                     StagingSlots& slots) {
  const HelloEnvironment trainer = decode_nccl_terms(request.source);
  const NcclMembership membership{request.nccl_unique_id, request.rank,
                                  static_cast<int32_t>(request.participants.size()) + 1,
                                  max_ctas_of(trainer)};
  const NcclLimits limits{request.deadline, &cancellation, options_.silence, options_.ending};
  const std::string name = "version " + std::to_string(request.id.weight_version) + ", attempt " +
                           std::to_string(request.id.attempt);
  WARPROLL_TRY_ASSIGN(group, NcclCommunicator::form(api_, membership, name, limits));
  Status status = with_registered_slots(trainer) ? slots.register_with(*group) : ok_status();
  if (status.ok()) {
    status = BucketReceive(*api_, *group, slots, manifest, sink, request.device_sink).run();
  }
  if (status.ok()) {
    close(std::move(group));
  } else {
    group->abort();
  }
  return status;
}

}  // namespace warproll
