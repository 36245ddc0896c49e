#include "worker/commands/bench_sync_feed.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "weights_sync/nccl/buckets.h"
#include "weights_sync/nccl/nccl_terms.h"
#include "weights_sync/nccl/nccl_transport.h"
#include "weights_sync/nccl/staging_slots.h"
#include "worker/commands/bench_sync_mate.h"

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr milliseconds kAnswer(10'000);
constexpr milliseconds kDrawn(300'000);  // page-locking tens of GB takes a minute
constexpr milliseconds kBare(120'000);
constexpr std::chrono::microseconds kPause(50);
constexpr uint64_t kCopyBytes = uint64_t{2} << 20;

Result<UpdateOffer> offer_of(const Manifest& manifest, std::string encoded, uint64_t stream_bytes,
                             TransportRoute route) {
  UpdateOffer offer;
  offer.weight_version = manifest.weight_version;
  offer.weight_digest = manifest.weight_digest;
  offer.manifest = std::move(encoded);
  offer.stream_bytes = stream_bytes;
  offer.routes.push_back(std::move(route));
  return offer;
}

SyncFrame frame_of(SyncTask task, const UpdateId& id) {
  SyncFrame frame;
  frame.task = task;
  frame.id = id;
  return frame;
}

GroupTransfers groups_over(SyncLink& link) {
  return {[&link](const UpdateId& id, const std::vector<std::string>& participants,
                  uint32_t deadline_ms) -> Result<std::string> {
            SyncFrame frame = frame_of(SyncTask::kStart, id);
            frame.deadline_ms = deadline_ms;
            frame.number = participants.size();
            WARPROLL_TRY_ASSIGN(answer, link.ask(frame, kAnswer));
            return answer.text;
          },
          [&link](const UpdateId& id) -> Result<bool> {
            WARPROLL_TRY_ASSIGN(answer, link.ask(frame_of(SyncTask::kProgress, id), kAnswer));
            return answer.number == 1;
          },
          [&link](const UpdateId& id) {
            (void)link.ask(frame_of(SyncTask::kStop, id), kAnswer);  // a dead trainer has stopped
          }};
}

// Out of a stream in host memory, through the two slots of the GPU or to the host's sink.
class MemoryTransport final : public BroadcastTransport {
 public:
  explicit MemoryTransport(std::shared_ptr<NcclApi> api) : api_(std::move(api)) {}
  void set(DrawnStream stream) { stream_ = std::move(stream); }
  [[nodiscard]] std::string_view name() const override { return "memory"; }
  [[nodiscard]] Result<std::optional<PackedArena>> packed_arena(const UpdateBegin&) const override {
    return stream_.arena ? std::optional(stream_.arena->packed) : std::nullopt;
  }

  Status receive(const ReceiveRequest& request, const Manifest& manifest, const StreamSink& sink,
                 const Cancellation& cancellation) override {
    if (api_ && request.device_sink) return receive_on_device(request, manifest, cancellation);
    for (uint64_t i = 0; i < manifest.num_buckets(); ++i) {
      WARPROLL_TRY(check(request, cancellation));
      const uint64_t offset = i * manifest.bucket_bytes;
      WARPROLL_TRY(sink(offset, {stream_.bytes + offset, manifest.bytes_of_bucket(i)}));
    }
    return ok_status();
  }

 private:
  static Status check(const ReceiveRequest& request, const Cancellation& cancellation) {
    if (cancellation.cancelled()) return aborted("cancelled");
    if (Clock::now() > request.deadline) return deadline_exceeded("the deadline has passed");
    return ok_status();
  }

  Status await(GpuEvent event, const ReceiveRequest& request, const Cancellation& cancellation) {
    while (true) {
      WARPROLL_TRY_ASSIGN(done, api_->done(event));
      if (done) return ok_status();
      WARPROLL_TRY(check(request, cancellation));
      std::this_thread::sleep_for(kPause);
    }
  }

  Status receive_on_device(const ReceiveRequest& request, const Manifest& manifest,
                           const Cancellation& cancellation) {
    WARPROLL_TRY(api_->bind_thread());
    if (!slots_) {
      WARPROLL_TRY_ASSIGN(made, StagingSlots::make(api_, manifest.bucket_bytes, false));
      slots_ = std::move(made);
    }
    StagingSlots* const slots = slots_.get();
    const Buckets buckets = buckets_of(manifest, request.packed);
    const uint64_t num_buckets = buckets.count();
    const std::byte* const from = request.packed ? stream_.arena->bytes.get() : stream_.bytes;
    const auto place = [&](uint64_t i) {  // where a bucket comes to
      return request.packed ? request.arena.data() + buckets.offset(i) : slots->slot_of(i).device;
    };
    // In pieces: a step's inputs take the same way, behind what is on it.
    const auto copy = [&](uint64_t i) -> Status {
      StagingSlots::Slot& slot = slots->slot_of(i);
      if (i >= 2) WARPROLL_TRY(api_->wait(slots->communication(), slot.used));
      const uint64_t bytes = buckets.bytes(i);
      for (uint64_t at = 0; at < bytes; at += kCopyBytes) {
        WARPROLL_TRY(api_->copy(place(i) + at, from + buckets.offset(i) + at,
                                std::min(kCopyBytes, bytes - at), slots->communication()));
      }
      return api_->record(slot.moved, slots->communication());
    };
    for (uint64_t i = 0; i < std::min<uint64_t>(2, num_buckets); ++i) WARPROLL_TRY(copy(i));
    for (uint64_t i = 0; i < num_buckets; ++i) {
      StagingSlots::Slot& slot = slots->slot_of(i);
      WARPROLL_TRY(await(slot.moved, request, cancellation));
      WARPROLL_TRY(request.device_sink(buckets.offset(i), {place(i), buckets.bytes(i)},
                                       slots->processing()));
      WARPROLL_TRY(api_->record(slot.used, slots->processing()));
      if (i + 2 < num_buckets) WARPROLL_TRY(copy(i + 2));
    }
    WARPROLL_TRY(api_->record(slots->ended(), slots->processing()));
    return await(slots->ended(), request, cancellation);
  }

  const std::shared_ptr<NcclApi> api_;
  DrawnStream stream_;
  std::unique_ptr<StagingSlots> slots_;  // kept, as the nccl transport keeps its own
};

}  // namespace

SyncFeed nccl_feed(SyncLink& link, std::shared_ptr<NcclApi> api, int32_t max_ctas,
                   const HelloEnvironment& nccl_variables,
                   const std::vector<std::unique_ptr<SyncMate>>& mates) {
  auto current = std::make_shared<Buckets>();
  SyncFeed feed;
  feed.transport = std::make_shared<NcclTransport>(
      api, NcclTransportOptions{.max_ctas = max_ctas, .nccl_variables = nccl_variables});
  feed.offer = [&link, current](uint64_t weight_version, uint64_t seed,
                                int32_t ctas) -> Result<UpdateOffer> {
    SyncFrame frame = frame_of(SyncTask::kDraw, {0, weight_version, 0});
    frame.seed = seed;
    WARPROLL_TRY_ASSIGN(drawn, link.ask(frame, kDrawn));
    WARPROLL_TRY_ASSIGN(manifest, decode_manifest(drawn.text));
    frame.task = SyncTask::kOffer;
    frame.max_ctas = ctas;
    WARPROLL_TRY_ASSIGN(offered, link.ask(frame, kAnswer));
    WARPROLL_TRY_ASSIGN(packed, packed_arena_in(decode_nccl_terms(offered.text)));
    *current = buckets_of(manifest, packed);
    TransportRoute route{"nccl", offered.text, ""};
    route.group = groups_over(link);
    return offer_of(manifest, drawn.text, current->stream_bytes, std::move(route));
  };
  feed.bare = [&link, &mates, current, api](int32_t ctas) -> Result<BareTimes> {
    SyncFrame frame;
    frame.task = SyncTask::kBare;
    frame.max_ctas = ctas;
    frame.number = mates.size() + 1;
    WARPROLL_TRY_ASSIGN(id, link.ask(frame, kAnswer));
    BareOrder order{current->stream_bytes, current->bucket_bytes, 1,
                    static_cast<int32_t>(mates.size()) + 2, ctas};
    for (const auto& mate : mates) {
      ++order.rank;
      WARPROLL_TRY(mate->begin_bare(order, id.text));
    }
    Result<BareTimes> mine =
        bare_broadcast(api, {id.text, 1, order.num_ranks, ctas}, current->stream_bytes,
                       current->bucket_bytes, {Clock::now() + kBare});
    // Every answer comes in any case, and must not be taken for another's.
    const Result<SyncFrame> theirs = link.answer(kBare);
    Status status = theirs.status();
    for (const auto& mate : mates) {
      const Status joined = mate->end_bare(kBare).status();
      if (status.ok()) status = joined;
    }
    WARPROLL_TRY(status);
    WARPROLL_TRY(mine.status());
    mine->seconds = std::max(mine->seconds, theirs->seconds);
    return mine;
  };
  return feed;
}

SyncFeed memory_feed(DrawStream draw, std::shared_ptr<NcclApi> api) {
  auto transport = std::make_shared<MemoryTransport>(std::move(api));
  SyncFeed feed;
  feed.transport = transport;
  feed.offer = [transport, draw = std::move(draw)](uint64_t weight_version, uint64_t seed,
                                                   int32_t) -> Result<UpdateOffer> {
    WARPROLL_TRY_ASSIGN(drawn, draw(weight_version, seed));
    transport->set(drawn);
    return offer_of(*drawn.manifest, encode_manifest(*drawn.manifest), drawn.stream_bytes(),
                    {"memory", "", ""});
  };
  return feed;
}

void TimedTransport::note(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  times_.last = Clock::now();
  if (times_.bytes == 0) {
    times_.first = times_.last;
    times_.first_bytes = bytes;
  }
  times_.bytes += bytes;
}

Status TimedTransport::receive(const ReceiveRequest& request, const Manifest& manifest,
                               const StreamSink& sink, const Cancellation& cancellation) {
  {
    const std::lock_guard lock(mutex_);
    times_ = {};
    times_.begun = Clock::now();
  }
  const StreamSink timed = [&](uint64_t offset, std::span<const std::byte> bytes) {
    note(bytes.size());
    return sink(offset, bytes);
  };
  ReceiveRequest watched = request;
  if (request.device_sink) {
    watched.device_sink = [&](uint64_t offset, std::span<const std::byte> bytes, void* stream) {
      note(bytes.size());
      return request.device_sink(offset, bytes, stream);
    };
  }
  const Status status = inner_->receive(watched, manifest, timed, cancellation);
  const std::lock_guard lock(mutex_);
  times_.ended = Clock::now();
  return status;
}

void TimedTransport::settle() {
  inner_->settle();
  const std::lock_guard lock(mutex_);
  times_.settled = Clock::now();
}

ReceiveTimes TimedTransport::times() const {
  const std::lock_guard lock(mutex_);
  return times_;
}

}  // namespace warproll
