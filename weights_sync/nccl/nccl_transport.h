// The `nccl` transport: the workers of an update form one group with the trainer (rank 0), which
// broadcasts the manifest's stream bucket by bucket through two staging slots on each GPU. While
// bucket i + 1 is on its way, bucket i is given to the sink.
//
// A packed arena (ReceiveRequest::packed) is broadcast into its place on the GPU, without slots: sender and NIC
// write where the weights will serve.
//
// Bytes reach a sink only after they have arrived. With a device_sink they stay on the GPU; without
// one (a worker whose weights are in host memory) they are copied to pinned memory for `sink`.
// A receive that went well returns when the stream has ended; its group is taken apart meanwhile, on a
// thread of its own, which the next receive and settle() wait for. After a failure nothing is left; where
// a kernel does not end that was to write into an arena, later receives are refused.
// GPU memory, beside NCCL's own: two buckets, kept from the first receive on while their size stays (to
// allocate or to free stops the whole GPU, and so whoever decodes there).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

#include "weights_sync/broadcast_transport.h"
#include "weights_sync/nccl/nccl_api.h"

namespace warproll {

class NcclCommunicator;
class StagingSlots;
struct Buckets;

struct NcclTransportOptions {
  int32_t max_ctas = 4;                       // the trainer may not want more than that of this GPU
  std::chrono::milliseconds silence{30'000};  // a group in which nothing moves is given up
  std::chrono::milliseconds ending{5'000};    // see NcclLimits
  HelloEnvironment nccl_variables = {};       // this process's NCCL_*
};

// Absolute counts.
struct NcclTransportStats {
  uint64_t receives = 0;
  uint64_t failed = 0;
  uint64_t abandoned_bytes = 0;  // staging memory the device never let go of
};

// Worker. Thread: as BroadcastTransport; stats() from the thread of receive().
class NcclTransport final : public BroadcastTransport {
 public:
  NcclTransport(std::shared_ptr<NcclApi> api, NcclTransportOptions options);
  ~NcclTransport() override;

  [[nodiscard]] std::string_view name() const override { return "nccl"; }
  [[nodiscard]] HelloEnvironment environment() const override { return terms_; }
  [[nodiscard]] Status check(const UpdateBegin& begin) const override;
  [[nodiscard]] Result<std::optional<PackedArena>> packed_arena(
      const UpdateBegin& begin) const override;
  // kInvalidArgument also: the Start named no group, or this worker is not in it.
  Status receive(const ReceiveRequest& request, const Manifest& manifest, const StreamSink& sink,
                 const Cancellation& cancellation) override;
  void settle() override;
  [[nodiscard]] const NcclTransportStats& stats() const { return stats_; }

 private:
  void close(std::unique_ptr<NcclCommunicator> group);
  Status want_slots(uint64_t slot_bytes, bool with_pinned);
  Status receive_stream(const ReceiveRequest& request, const Buckets& buckets,
                        const StreamSink& sink, const Cancellation& cancellation,
                        StagingSlots& slots);

  const std::shared_ptr<NcclApi> api_;
  const NcclTransportOptions options_;
  const HelloEnvironment terms_;
  NcclTransportStats stats_;
  std::unique_ptr<StagingSlots> slots_;  // of the last receive; idle between two
  bool arena_is_held_ = false;           // a kernel that may still write into it has not ended
  std::thread closing_;                  // of the last receive's group
};

}  // namespace warproll
