// bare_broadcast: the broadcasts that a stream of buckets needs and nothing else, out of and into the
// two slots of each rank: the ceiling that the transport is measured against.
// Thread: one. Errors: as NcclCommunicator's.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "protocol/status.h"
#include "weights_sync/nccl/nccl_communicator.h"

namespace warproll {

// Of the whole stream, the group's forming and ending not counted.
struct BareTimes {
  std::chrono::steady_clock::time_point begun, ended;
  double seconds = 0;  // of the slowest rank that is known
};

// Every rank calls it. Forms a group, connects it with one bucket, then sends the stream.
Result<BareTimes> bare_broadcast(const std::shared_ptr<NcclApi>& api,
                                 const NcclMembership& membership, uint64_t stream_bytes,
                                 uint64_t bucket_bytes, const NcclLimits& limits);

}  // namespace warproll
