#include "weights_sync/nccl/nccl_root.h"

#include <algorithm>

namespace warproll {
namespace {

Status send_buckets(NcclApi& api, NcclCommunicator& group, StagingSlots& slots,
                    const RootTask& task) {
  const Manifest& manifest = *task.manifest;
  const uint64_t num_buckets = manifest.num_buckets();
  for (uint64_t i = 0; i < num_buckets; ++i) {
    StagingSlots::Slot& slot = slots.slot_of(i);
    const uint64_t bytes = manifest.bytes_of_bucket(i);
    const std::string what = "bucket " + std::to_string(i) + " of " + std::to_string(num_buckets);
    if (i >= 2) {
      WARPROLL_TRY(group.await(slot.used, what + ", its slot"));  // the pinned half is free
      WARPROLL_TRY(api.wait(slots.processing(), slot.moved));     // and so will be the device's
    }
    WARPROLL_TRY(task.fill(i * manifest.bucket_bytes, bytes, slot, slots));
    WARPROLL_TRY(api.record(slot.used, slots.processing()));
    WARPROLL_TRY(api.wait(slots.communication(), slot.used));
    WARPROLL_TRY(group.broadcast(slot.device, bytes, slots.communication(), what));
    WARPROLL_TRY(api.record(slot.moved, slots.communication()));
  }
  WARPROLL_TRY(group.meet(slots.word(), slots.communication()));
  WARPROLL_TRY(api.record(slots.ended(), slots.communication()));
  return group.await(slots.ended(), "the end of the stream");
}

}  // namespace

Status send_to_group(const std::shared_ptr<NcclApi>& api, const RootTask& task) {
  const uint64_t slot_bytes = std::max<uint64_t>(
      kMinBucketBytes, std::min(task.manifest->bucket_bytes, task.manifest->stream_bytes()));
  bool has_formed = false;
  const auto send = [&]() -> Status {
    WARPROLL_TRY(api->bind_thread());
    WARPROLL_TRY_ASSIGN(slots, StagingSlots::make(api, slot_bytes, task.from_host));
    WARPROLL_TRY_ASSIGN(group,
                        NcclCommunicator::form(api, task.membership, task.name, task.limits));
    has_formed = true;
    Status status = slots->register_with(*group);
    if (status.ok()) status = send_buckets(*api, *group, *slots, task);
    if (status.ok()) {
      group->close();
    } else {
      group->abort();
    }
    (void)slots->drain(task.limits.ending);
    return status;
  };
  const Status status = send();
  if (!has_formed) api->forget_unique_id(task.membership.unique_id);
  return status;
}

}  // namespace warproll
