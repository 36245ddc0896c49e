#include "weights_sync/nccl/nccl_root.h"

namespace warproll {
namespace {

Status send_buckets(NcclApi& api, NcclCommunicator& group, StagingSlots& slots,
                    const RootTask& task) {
  for (uint64_t i = 0; i < task.buckets.count(); ++i) {
    StagingSlots::Slot& slot = slots.slot_of(i);
    const uint64_t bytes = task.buckets.bytes(i);
    const std::string what = task.buckets.name(i);
    std::byte* from = slot.device;
    if (task.arena != nullptr) {
      from = task.arena + task.buckets.offset(i);
      if (i >= 2) WARPROLL_TRY(group.await(slot.moved, what + ", the one two before"));
    } else {
      if (i >= 2) {
        WARPROLL_TRY(group.await(slot.used, what + ", its slot"));  // the pinned half is free
        WARPROLL_TRY(api.wait(slots.processing(), slot.moved));     // and so will be the device's
      }
      WARPROLL_TRY(task.fill(task.buckets.offset(i), bytes, slot, slots));
      WARPROLL_TRY(api.record(slot.used, slots.processing()));
      WARPROLL_TRY(api.wait(slots.communication(), slot.used));
    }
    WARPROLL_TRY(group.broadcast(from, bytes, slots.communication(), what));
    WARPROLL_TRY(api.record(slot.moved, slots.communication()));
  }
  WARPROLL_TRY(group.meet(slots.word(), slots.communication()));
  WARPROLL_TRY(api.record(slots.ended(), slots.communication()));
  return group.await(slots.ended(), "the end of the stream");
}

}  // namespace

Status send_to_group(const std::shared_ptr<NcclApi>& api, const RootTask& task) {
  const bool in_place = task.arena != nullptr;
  const uint64_t slot_bytes = in_place ? kMinBucketBytes : task.buckets.slot_bytes();
  bool has_formed = false;
  const auto send = [&]() -> Status {
    WARPROLL_TRY(api->bind_thread());
    WARPROLL_TRY_ASSIGN(slots, StagingSlots::make(api, slot_bytes, task.from_host));
    WARPROLL_TRY_ASSIGN(group,
                        NcclCommunicator::form(api, task.membership, task.name, task.limits));
    has_formed = true;
    Status status = in_place ? group->register_buffer(task.arena, task.buckets.stream_bytes)
                             : slots->register_with(*group);
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
