#include "weights_sync/nccl/bare_broadcast.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "weights_sync/nccl/staging_slots.h"

namespace warproll {
namespace {

Status broadcast_all(NcclApi& api, NcclCommunicator& group, StagingSlots& slots,
                     uint64_t stream_bytes, uint64_t bucket_bytes) {
  uint64_t index = 0;
  for (uint64_t done = 0; done < stream_bytes; done += bucket_bytes) {
    WARPROLL_TRY(group.broadcast(slots.slot_of(index).device,
                                 std::min(bucket_bytes, stream_bytes - done), slots.communication(),
                                 "bucket " + std::to_string(index)));
    ++index;
  }
  WARPROLL_TRY(group.meet(slots.word(), slots.communication()));
  WARPROLL_TRY(api.record(slots.ended(), slots.communication()));
  return group.await(slots.ended(), "the end of the bare broadcasts");
}

}  // namespace

Result<BareTimes> bare_broadcast(const std::shared_ptr<NcclApi>& api,
                                 const NcclMembership& membership, uint64_t stream_bytes,
                                 uint64_t bucket_bytes, const NcclLimits& limits) {
  using Clock = std::chrono::steady_clock;
  WARPROLL_TRY(api->bind_thread());
  WARPROLL_TRY_ASSIGN(slots, StagingSlots::make(api, bucket_bytes, /*with_pinned=*/false));
  WARPROLL_TRY_ASSIGN(group, NcclCommunicator::form(api, membership, "bare broadcasts", limits));
  WARPROLL_TRY(slots->register_with(*group));
  WARPROLL_TRY(
      broadcast_all(*api, *group, *slots, std::min(bucket_bytes, stream_bytes), bucket_bytes));
  const Clock::time_point begun = Clock::now();
  WARPROLL_TRY(broadcast_all(*api, *group, *slots, stream_bytes, bucket_bytes));
  const Clock::time_point ended = Clock::now();
  group->close();
  (void)slots->drain(limits.ending);
  return BareTimes{begun, ended, std::chrono::duration<double>(ended - begun).count()};
}

}  // namespace warproll
