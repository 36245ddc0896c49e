#include "worker/commands/bench_sync_trainer.h"

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weights_sync/nccl/bare_broadcast.h"

namespace warproll {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kIdle(3'600'000);
constexpr std::chrono::seconds kBareLimit(120);

class SyncTrainer {
 public:
  SyncTrainer(SyncLink& link, std::shared_ptr<NcclApi> api, DrawStream draw,
              HelloEnvironment nccl_variables)
      : link_(link),
        api_(std::move(api)),
        draw_(std::move(draw)),
        nccl_variables_(std::move(nccl_variables)) {}

  Status serve() {
    while (true) {
      const Result<SyncFrame> asked = link_.receive(kIdle);
      if (asked.status().code() == StatusCode::kUnavailable) return ok_status();  // closed
      WARPROLL_TRY(asked.status());
      WARPROLL_TRY(link_.send(answer(*asked)));
    }
  }

 private:
  SyncFrame answer(const SyncFrame& asked) {
    SyncFrame reply;
    reply.task = asked.task;
    try {
      const Status status = perform(asked, reply);
      return status.ok() ? reply : failed_frame(asked.task, status);
    } catch (const std::exception& error) {  // CUDA's
      return failed_frame(asked.task, internal_error(error.what()));
    }
  }

  Status perform(const SyncFrame& asked, SyncFrame& reply) {
    switch (asked.task) {
      case SyncTask::kDraw:
        return draw(asked, reply);
      case SyncTask::kOffer:
        return offer(asked, reply);
      case SyncTask::kStart:
        return start(asked, reply);
      case SyncTask::kProgress: {
        WARPROLL_TRY(want_route());
        WARPROLL_TRY_ASSIGN(complete, route_->group->progress(asked.id));
        reply.number = complete ? 1 : 0;
        return ok_status();
      }
      case SyncTask::kStop:
        WARPROLL_TRY(want_route());
        route_->group->stop(asked.id);
        return ok_status();
      case SyncTask::kBare:
        return bare(asked, reply);
      default:
        break;
    }
    return invalid_argument("task " + std::to_string(static_cast<uint32_t>(asked.task)));
  }

  Status want_route() const {
    return route_ ? ok_status() : failed_precondition("nothing is offered");
  }

  // No group may read the stream while it is drawn.
  Status draw(const SyncFrame& asked, SyncFrame& reply) {
    route_.reset();
    source_.reset();
    stream_ = {};
    WARPROLL_TRY_ASSIGN(drawn, draw_(asked.id.weight_version, asked.seed));
    stream_ = drawn;
    reply.text = encode_manifest(*stream_.manifest);
    return ok_status();
  }

  Status offer(const SyncFrame& asked, SyncFrame& reply) {
    if (!stream_.manifest) return failed_precondition("nothing is drawn");
    source_ = std::make_unique<NcclSource>(
        api_, NcclSourceOptions{.max_ctas = asked.max_ctas, .nccl_variables = nccl_variables_});
    if (stream_.arena) {
      route_ = source_->offer_arena(*stream_.arena);
    } else {
      route_ =
          source_->offer_device(stream_.manifest, [stream = stream_](const ManifestEntry& entry) {
            return Result<const void*>(stream.bytes + stream.manifest->stream_offset(entry));
          });
    }
    reply.text = route_->source;
    return ok_status();
  }

  Status start(const SyncFrame& asked, SyncFrame& reply) {
    WARPROLL_TRY(want_route());
    WARPROLL_TRY_ASSIGN(
        unique_id, route_->group->start(asked.id, std::vector<std::string>(asked.number, "worker"),
                                        asked.deadline_ms));
    reply.text = unique_id;
    return ok_status();
  }

  Status bare(const SyncFrame& asked, SyncFrame& reply) {
    if (!stream_.manifest) return failed_precondition("nothing is drawn");
    route_.reset();  // no group of an update is under way any more
    source_.reset();
    WARPROLL_TRY_ASSIGN(unique_id, api_->make_unique_id());
    SyncFrame id;
    id.task = asked.task;
    id.text = unique_id;
    WARPROLL_TRY(link_.send(id));
    WARPROLL_TRY_ASSIGN(
        times,
        bare_broadcast(api_, {unique_id, 0, static_cast<int32_t>(asked.number) + 1, asked.max_ctas},
                       stream_.stream_bytes(), stream_.manifest->bucket_bytes,
                       {std::chrono::steady_clock::now() + kBareLimit}));
    reply.seconds = times.seconds;
    return ok_status();
  }

  SyncLink& link_;
  const std::shared_ptr<NcclApi> api_;
  const DrawStream draw_;
  const HelloEnvironment nccl_variables_;
  DrawnStream stream_;
  std::unique_ptr<NcclSource> source_;  // its destructor ends the groups and waits for them
  std::optional<TransportRoute> route_;
};

}  // namespace

Status serve_sync_trainer(SyncLink& link, std::shared_ptr<NcclApi> api, DrawStream draw,
                          const HelloEnvironment& nccl_variables) {
  return SyncTrainer(link, std::move(api), std::move(draw), nccl_variables).serve();
}

}  // namespace warproll
