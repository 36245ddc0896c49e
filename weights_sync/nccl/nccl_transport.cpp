#include "weights_sync/nccl/nccl_transport.h"

#include <algorithm>
#include <utility>

#include "weights_sync/nccl/buckets.h"
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

bool is_in_place(const ReceiveRequest& request) {
  return request.packed.has_value() && request.device_sink != nullptr;
}

// The stream of one receive, bucket by bucket.
class BucketReceive {
 public:
  BucketReceive(NcclApi& api, NcclCommunicator& group, StagingSlots& slots, const Buckets& buckets,
                const StreamSink& sink, const ReceiveRequest& request)
      : api_(api),
        group_(group),
        slots_(slots),
        buckets_(buckets),
        sink_(sink),
        device_sink_(request.device_sink),
        arena_(is_in_place(request) ? request.arena.data() : nullptr) {}

  Status run() {
    const uint64_t num_buckets = buckets_.count();
    for (uint64_t i = 0; i < std::min<uint64_t>(2, num_buckets); ++i) WARPROLL_TRY(enqueue(i));
    for (uint64_t i = 0; i < num_buckets; ++i) {
      WARPROLL_TRY(take(i));
      if (i + 2 < num_buckets) WARPROLL_TRY(enqueue(i + 2));
      if (!device_sink_) {
        WARPROLL_TRY(sink_(buckets_.offset(i), {slot_of(i).pinned, buckets_.bytes(i)}));
      }
    }
    WARPROLL_TRY(group_.meet(slots_.word(), slots_.communication()));
    WARPROLL_TRY(api_.record(slots_.ended(), slots_.communication()));
    WARPROLL_TRY(group_.await(slots_.ended(), "the end of the stream"));
    WARPROLL_TRY(api_.record(slots_.ended(), slots_.processing()));
    return group_.await(slots_.ended(), "the work on the last bucket");
  }

 private:
  [[nodiscard]] StagingSlots::Slot& slot_of(uint64_t i) { return slots_.slot_of(i); }
  // Where the bucket comes to.
  [[nodiscard]] std::byte* place_of(uint64_t i) {
    return arena_ == nullptr ? slot_of(i).device : arena_ + buckets_.offset(i);
  }

  Status enqueue(uint64_t i) {
    StagingSlots::Slot& slot = slot_of(i);
    if (i >= 2) WARPROLL_TRY(api_.wait(slots_.communication(), slot.used));
    WARPROLL_TRY(
        group_.broadcast(place_of(i), buckets_.bytes(i), slots_.communication(), buckets_.name(i)));
    return api_.record(slot.moved, slots_.communication());
  }

  // When the bucket is there: on to the device's sink, or to the host.
  Status take(uint64_t i) {
    StagingSlots::Slot& slot = slot_of(i);
    WARPROLL_TRY(group_.await(slot.moved, buckets_.name(i)));
    if (device_sink_) {
      WARPROLL_TRY(
          device_sink_(buckets_.offset(i), {place_of(i), buckets_.bytes(i)}, slots_.processing()));
      return api_.record(slot.used, slots_.processing());
    }
    WARPROLL_TRY(api_.copy(slot.pinned, slot.device, buckets_.bytes(i), slots_.processing()));
    WARPROLL_TRY(api_.record(slot.used, slots_.processing()));
    return group_.await(slot.used, buckets_.name(i) + ", copy to the host");
  }

  NcclApi& api_;
  NcclCommunicator& group_;
  StagingSlots& slots_;
  const Buckets& buckets_;
  const StreamSink& sink_;
  const DeviceSink& device_sink_;
  std::byte* const arena_;  // in place; null: through the slots
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

Result<std::optional<PackedArena>> NcclTransport::packed_arena(const UpdateBegin& begin) const {
  return packed_arena_in(decode_nccl_terms(begin.source));
}

Status NcclTransport::receive(const ReceiveRequest& request, const Manifest& manifest,
                              const StreamSink& sink, const Cancellation& cancellation) {
  ++stats_.receives;
  const auto run = [&]() -> Status {
    WARPROLL_TRY(check_group(request));
    if (arena_is_held_) {
      return failed_precondition(
          "a kernel of an earlier group has not ended and may write into the standby weights: "
          "restart this worker");
    }
    settle();  // groups form one after the other
    WARPROLL_TRY(api_->bind_thread());
    const Buckets buckets = buckets_of(manifest, request.packed);
    WARPROLL_TRY(want_slots(is_in_place(request) ? kMinBucketBytes : buckets.slot_bytes(),
                            !request.device_sink));
    const Status status = receive_stream(request, buckets, sink, cancellation, *slots_);
    if (!slots_->drain(options_.ending)) {
      stats_.abandoned_bytes += 2 * slots_->slot_bytes();
      slots_.reset();
      arena_is_held_ = is_in_place(request);
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

Status NcclTransport::receive_stream(const ReceiveRequest& request, const Buckets& buckets,
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
  Status status = ok_status();
  if (with_registered_slots(trainer)) {
    status = is_in_place(request)
                 ? group->register_buffer(request.arena.data(), buckets.stream_bytes)
                 : slots.register_with(*group);
  }
  if (status.ok()) {
    status = BucketReceive(*api_, *group, slots, buckets, sink, request).run();
  }
  if (status.ok()) {
    close(std::move(group));
  } else {
    group->abort();
  }
  return status;
}

}  // namespace warproll
