// SyncFeed: where the updates of `warproll bench sync` come from: the trainer's process over NCCL, or
// this process's own host memory. Thread: one; the transport as BroadcastTransport says.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "protocol/status.h"
#include "weights_sync/broadcast_transport.h"
#include "weights_sync/broadcaster.h"
#include "weights_sync/nccl/bare_broadcast.h"
#include "weights_sync/nccl/nccl_api.h"
#include "worker/commands/bench_sync_link.h"
#include "worker/commands/bench_sync_stream.h"

namespace warproll {

class SyncMate;

struct SyncFeed {
  std::shared_ptr<BroadcastTransport> transport;
  // Draws the version and offers it.
  std::function<Result<UpdateOffer>(uint64_t weight_version, uint64_t seed, int32_t max_ctas)>
      offer;
  // Bare broadcasts of what is offered. Null: there is no such thing.
  std::function<Result<BareTimes>(int32_t max_ctas)> bare;
};

// `link` and `mates` outlive the feed. max_ctas: the most that any update will take. mates: the other
// workers, which take part in bare broadcasts.
SyncFeed nccl_feed(SyncLink& link, std::shared_ptr<NcclApi> api, int32_t max_ctas,
                   const HelloEnvironment& nccl_variables,
                   const std::vector<std::unique_ptr<SyncMate>>& mates);
// `draw` gives page-locked host memory; with an api the bytes are copied to the GPU's two slots and
// taken in there, as they would be from NCCL (a packed arena is copied to its place); without one they go to
// the host's sink.
SyncFeed memory_feed(DrawStream draw, std::shared_ptr<NcclApi> api);

// When the bytes of the last receive came.
struct ReceiveTimes {
  using TimePoint = std::chrono::steady_clock::time_point;
  TimePoint begun, first, last, ended;  // first and last: handed to the sink
  TimePoint settled;                    // the group is taken apart; of settle()
  uint64_t first_bytes = 0;             // of the first bucket
  uint64_t bytes = 0;
};

// A transport that is watched.
class TimedTransport final : public BroadcastTransport {
 public:
  explicit TimedTransport(std::shared_ptr<BroadcastTransport> inner) : inner_(std::move(inner)) {}
  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  [[nodiscard]] Status check(const UpdateBegin& begin) const override {
    return inner_->check(begin);
  }
  [[nodiscard]] Result<std::optional<PackedArena>> packed_arena(
      const UpdateBegin& begin) const override {
    return inner_->packed_arena(begin);
  }
  [[nodiscard]] HelloEnvironment environment() const override { return inner_->environment(); }
  void settle() override;
  Status receive(const ReceiveRequest& request, const Manifest& manifest, const StreamSink& sink,
                 const Cancellation& cancellation) override;
  [[nodiscard]] ReceiveTimes times() const;  // any thread

 private:
  void note(uint64_t bytes);

  const std::shared_ptr<BroadcastTransport> inner_;
  mutable std::mutex mutex_;
  ReceiveTimes times_;
};

}  // namespace warproll
