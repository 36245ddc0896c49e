// The steps of one worker towards its goal.
#include <algorithm>
#include <utility>

#include "weights_sync/broadcaster.h"
#include "weights_sync/broadcaster_state.h"

namespace warproll {
namespace {

// The first route that the worker knows and that suits it; else why there is none.
Status choose_route(const UpdateOffer& offer, const std::vector<std::string>& transports,
                    const HelloEnvironment& environment, size_t* route_index) {
  std::string why = "knows none of the transports offered";
  for (size_t i = 0; i < offer.routes.size(); ++i) {
    const TransportRoute& route = offer.routes[i];
    if (std::find(transports.begin(), transports.end(), route.transport) == transports.end()) {
      continue;
    }
    const Status suits = route.suits ? route.suits(environment) : ok_status();
    *route_index = i;
    if (suits.ok()) return ok_status();
    why = "cannot use " + route.transport + ": " + suits.message();
  }
  return failed_precondition(why);
}

}  // namespace

std::string_view Broadcaster::stage_name(Stage stage) {
  switch (stage) {
    case Stage::kNone:
      return "none";
    case Stage::kBegun:
      return "begun";
    case Stage::kDeferred:
      return "deferred";
    case Stage::kAccepted:
      return "accepted";
    case Stage::kStarted:
      return "started";
    case Stage::kReady:
      return "ready";
    case Stage::kCommitting:
      return "committing";
    case Stage::kAborting:
      return "aborting";
    case Stage::kRollingBack:
      return "rolling back";
    case Stage::kRejected:
      return "rejected";
    case Stage::kGaveUp:
      return "gave up";
  }
  return "unknown";
}

bool Broadcaster::serves(const Worker& worker, const Offer& offer) {
  return worker.status.serving_version == offer.offer.weight_version &&
         (offer.offer.weight_digest == Digest{} ||
          worker.status.serving_digest == offer.offer.weight_digest);
}

WorkerUpdateReport& Broadcaster::report_of(Offer& offer, const Worker& worker) {
  for (WorkerUpdateReport& report : offer.report.workers) {
    if (report.producer_id == worker.id) return report;
  }
  WorkerUpdateReport& report = offer.report.workers.emplace_back();
  report.producer_id = worker.id;
  report.worker_name = worker.name;
  return report;
}

void Broadcaster::send(Worker& worker, Message message, int64_t now_ms) {
  worker.restate_at_ms = now_ms + options_.restate_ms;
  outgoing_.push_back({worker.id, std::move(message)});
}

void Broadcaster::note(BroadcastEventKind kind, const Worker* worker, uint64_t version,
                       std::string text) {
  events_.push_back({kind, version, worker ? worker->name : "", std::move(text)});
}

void Broadcaster::advance_worker(Worker& worker, int64_t now_ms) {
  leave_old_goal(worker, now_ms);
  const auto& wanted = goal();
  // A committed version is never given up, only asked for seldom: what was wrong may get mended.
  if (worker.stage == Stage::kRejected && wanted == target_ && now_ms >= worker.retry_at_ms) {
    worker.stage = Stage::kNone;
  }
  const bool idle = worker.stage == Stage::kNone || worker.stage == Stage::kAborting;
  if (wanted && idle && !serves(worker, *wanted) && now_ms >= worker.retry_at_ms) {
    begin_worker(worker, now_ms);
  }
  if (worker.stage == Stage::kReady && worker.offer == target_) {
    worker.stage = Stage::kCommitting;
    send(worker, UpdateCommit{worker.update}, now_ms);
  }
  if (now_ms >= worker.restate_at_ms) restate(worker, now_ms);
}

void Broadcaster::leave_old_goal(Worker& worker, int64_t now_ms) {
  if (worker.offer == goal()) return;
  worker.retry_at_ms = now_ms;
  if (worker.stage == Stage::kNone) return;
  const bool undecided = worker.stage >= Stage::kBegun && worker.stage <= Stage::kReady;
  if (undecided) {
    worker.stage = Stage::kAborting;
    send(worker, UpdateAbort{worker.update, "the trainer gave up this update"}, now_ms);
  } else if (worker.stage != Stage::kAborting && worker.stage != Stage::kCommitting) {
    worker.stage = Stage::kNone;  // a rejection or a rollback of another goal
  } else if (worker.stage == Stage::kCommitting) {
    worker.stage = Stage::kNone;  // it committed or it fails; the next Begin finds out
  }
}

void Broadcaster::begin_worker(Worker& worker, int64_t now_ms) {
  const std::shared_ptr<Offer>& wanted = goal();
  if (worker.offer != wanted) {
    worker.offer = wanted;
    worker.attempts = 0;
    worker.rollback_tried = false;
  }
  const UpdateOffer& offer = wanted->offer;
  worker.update = next_id(offer.weight_version);
  if (wanted == target_ && rolling_back_ && !worker.rollback_tried && worker.status.can_rollback &&
      worker.status.rollback_version == offer.weight_version) {
    worker.rollback_tried = true;
    worker.stage = Stage::kRollingBack;
    send(worker, Rollback{worker.update}, now_ms);
    return;
  }
  ++worker.attempts;
  worker.group.reset();
  WorkerUpdateReport& report = report_of(*worker.offer, worker);
  report.attempts = worker.attempts;
  if (Status status =
          choose_route(offer, worker.transports, worker.environment, &worker.route_index);
      !status.ok()) {
    worker.stage = Stage::kRejected;
    worker.retry_at_ms = now_ms + (static_cast<int64_t>(options_.retry_ms) << kMaxDoublings);
    report.reason = status.message();
    note(BroadcastEventKind::kWorkerRejected, &worker, offer.weight_version,
         worker.name + " " + report.reason);
    return;
  }
  worker.stage = Stage::kBegun;
  worker.restate_at_ms = now_ms;  // advance_worker sends it
}

void Broadcaster::restate(Worker& worker, int64_t now_ms) {
  switch (worker.stage) {
    case Stage::kBegun:
    case Stage::kDeferred: {
      const UpdateOffer& offer = worker.offer->offer;
      const TransportRoute& route = offer.routes[worker.route_index];
      // So that a worker outlasts the decision.
      const uint32_t deadline_ms = time_left_ms(*worker.offer, now_ms) + options_.commit_grace_ms;
      send(worker,
           UpdateBegin{worker.update, route.transport, route.source, route.server_key,
                       offer.manifest, deadline_ms},
           now_ms);
      return;
    }
    case Stage::kStarted:
      send(worker,
           UpdateStart{worker.update, worker.participants,
                       worker.group ? worker.group->unique_id : std::string()},
           now_ms);
      return;
    case Stage::kCommitting:
      send(worker, UpdateCommit{worker.update}, now_ms);
      return;
    case Stage::kAborting:
      send(worker, UpdateAbort{worker.update, "the trainer gave up this update"}, now_ms);
      return;
    case Stage::kRollingBack:
      send(worker, Rollback{worker.update}, now_ms);
      return;
    case Stage::kNone:
    case Stage::kAccepted:
    case Stage::kReady:
    case Stage::kRejected:
    case Stage::kGaveUp:
      return;
  }
}

}  // namespace warproll
