// The root's part of one group: rank 0 broadcasts the stream of an offer to the members.
// Private to NcclSource. Thread: one, its own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "weights_sync/nccl/buckets.h"
#include "weights_sync/nccl/nccl_communicator.h"
#include "weights_sync/nccl/staging_slots.h"

namespace warproll {

// Enqueues on slots.processing() what brings [offset, + bytes) of the stream into slot.device.
using SlotFill = std::function<Status(uint64_t offset, uint64_t bytes, StagingSlots::Slot& slot,
                                      StagingSlots& slots)>;

struct RootTask {
  NcclMembership membership;
  std::string name;
  NcclLimits limits;
  Buckets buckets;
  SlotFill fill;
  bool from_host = true;  // the fill uses slot.pinned
  // Instead of a fill: [buckets.stream_bytes] on the GPU, sent as they lie.
  std::byte* arena = nullptr;
};

// Blocks until every member has every byte. Leaves nothing behind; errors as NcclCommunicator's.
Status send_to_group(const std::shared_ptr<NcclApi>& api, const RootTask& task);

}  // namespace warproll
