// What the trainer asks for and how updates are decided. broadcaster_workers.cpp has the steps of
// each worker.
#include "weights_sync/broadcaster.h"

#include <algorithm>
#include <utility>

#include "weights_sync/broadcaster_state.h"

namespace warproll {
namespace {

Status check_offer(const UpdateOffer& offer) {
  if (offer.weight_version == 0) {
    return invalid_argument("update offer: weight_version is 0, wanted a positive one");
  }
  const std::string what = "update offer of version " + std::to_string(offer.weight_version);
  if (offer.manifest.empty()) return invalid_argument(what + ": the manifest is empty");
  if (offer.routes.empty()) return invalid_argument(what + ": it has no transport");
  return ok_status();
}

}  // namespace

Broadcaster::Broadcaster(BroadcasterOptions options) : options_(options) {}
Broadcaster::~Broadcaster() = default;

uint64_t Broadcaster::pending_version() const {
  return pending_ ? pending_->offer.weight_version : 0;
}
uint64_t Broadcaster::target_version() const { return target_ ? target_->offer.weight_version : 0; }

uint64_t Broadcaster::rollback_version() const {
  return before_target_ ? before_target_->offer.weight_version : 0;
}

const std::shared_ptr<Broadcaster::Offer>& Broadcaster::goal() const {
  return pending_ ? pending_ : target_;
}

UpdateId Broadcaster::next_id(uint64_t version) {
  return {options_.trainer_epoch, version, ++last_attempt_};
}

Status Broadcaster::begin_update(UpdateOffer offer, int64_t now_ms) {
  WARPROLL_TRY(check_offer(offer));
  if (pending_) {
    abort_pending("superseded by version " + std::to_string(offer.weight_version), now_ms);
  }
  pending_ = std::make_shared<Offer>();
  pending_->report.weight_version = offer.weight_version;
  pending_->report.stream_bytes = offer.stream_bytes;
  reported_ = pending_;
  pending_->offer = std::move(offer);
  pending_->begun_ms = now_ms;
  pending_->decide_by_ms = now_ms + options_.deadline_ms;
  note(BroadcastEventKind::kBegun, nullptr, pending_version(),
       "version " + std::to_string(pending_version()) + " is offered to " +
           std::to_string(std::count_if(workers_.begin(), workers_.end(),
                                        [](const auto& entry) { return entry.second.live; })) +
           " workers");
  advance(now_ms);
  return ok_status();
}

Status Broadcaster::adopt(UpdateOffer offer, int64_t now_ms) {
  WARPROLL_TRY(check_offer(offer));
  WARPROLL_TRY(begin_update(std::move(offer), now_ms));
  if (pending_) commit_pending(now_ms);
  advance(now_ms);
  return ok_status();
}

void Broadcaster::abort_update(const std::string& reason, int64_t now_ms) {
  if (!pending_) return;
  abort_pending(reason, now_ms);
  advance(now_ms);
}

Status Broadcaster::rollback(uint64_t to_version, int64_t now_ms) {
  if (target_version() == to_version && to_version != 0 && !pending_) return ok_status();
  const bool to_target = target_version() == to_version && to_version != 0;
  const uint64_t before = rollback_version();
  if (!to_target && (to_version == 0 || to_version != before)) {
    return failed_precondition("rollback to version " + std::to_string(to_version) +
                               ": the version before the current " +
                               std::to_string(target_version()) + " is " + std::to_string(before));
  }
  if (pending_) abort_pending("rollback to version " + std::to_string(to_version), now_ms);
  if (!to_target) {
    std::swap(target_, before_target_);
    rolling_back_ = true;
    target_->begun_ms = now_ms;
    target_->report = {};
    target_->report.weight_version = to_version;
    target_->report.stream_bytes = target_->offer.stream_bytes;
    target_->report.decided = target_->report.committed = true;
    reported_ = target_;
    note(BroadcastEventKind::kRollback, nullptr, to_version,
         "the fleet goes back to version " + std::to_string(to_version));
  }
  advance(now_ms);
  return ok_status();
}

void Broadcaster::tick(int64_t now_ms) {
  for (auto& [id, worker] : workers_) {
    if (worker.live && now_ms - worker.last_seen_ms >= options_.liveness_ms) {
      on_worker_lost(id, "silent for " + std::to_string(options_.liveness_ms) + " ms", now_ms);
    }
  }
  advance(now_ms);
}

void Broadcaster::advance(int64_t now_ms) {
  for (auto& [id, worker] : workers_) {
    if (worker.live) advance_worker(worker, now_ms);
  }
  watch_groups(now_ms);
  start_accepted(now_ms);
  if (pending_) decide(now_ms);
  note_convergence(now_ms);
}

void Broadcaster::decide(int64_t now_ms) {
  uint32_t live = 0, ready = 0, refused = 0, waiting = 0;
  std::string reasons;
  for (const auto& [id, worker] : workers_) {
    if (!worker.live) continue;
    ++live;
    const bool is_ready =
        (worker.stage == Stage::kReady && worker.offer == pending_) || serves(worker, *pending_);
    if (is_ready) {
      ++ready;
    } else if (worker.stage == Stage::kRejected || worker.stage == Stage::kGaveUp) {
      ++refused;
    } else {
      ++waiting;
    }
    if (!is_ready) {
      reasons += "; " + worker.name + " " + std::string(stage_name(worker.stage));
      const std::string& why = report_of(*pending_, worker).reason;
      if (!why.empty()) reasons += " (" + why + ")";
    }
  }
  const bool late = now_ms >= pending_->decide_by_ms;
  const std::string count =
      std::to_string(ready) + " of " + std::to_string(live) + " workers ready";
  if (options_.rule == CommitRule::kAll) {
    if (ready == live) return commit_pending(now_ms);
    if (refused > 0 || late) abort_pending(count + reasons, now_ms);
    return;
  }
  if (ready >= options_.quorum) {
    if (pending_->quorum_since_ms < 0) pending_->quorum_since_ms = now_ms;
    const bool waited = now_ms >= pending_->quorum_since_ms + options_.straggler_ms;
    if (waiting == 0 || waited || late) commit_pending(now_ms);
    return;
  }
  pending_->quorum_since_ms = -1;
  const bool hopeless = live > 0 && refused == live;
  if (late || hopeless) {
    abort_pending(count + ", wanted " + std::to_string(options_.quorum) + reasons, now_ms);
  }
}

void Broadcaster::commit_pending(int64_t now_ms) {
  before_target_ = target_;
  target_ = std::move(pending_);
  pending_.reset();
  rolling_back_ = false;
  target_->report.decided = target_->report.committed = true;
  target_->report.decision_ms = now_ms - target_->begun_ms;
  note(BroadcastEventKind::kCommitted, nullptr, target_version(),
       "version " + std::to_string(target_version()) + " is committed");
  for (auto& [id, worker] : workers_) {
    if (!worker.live) continue;
    if (worker.stage == Stage::kGaveUp) worker.stage = Stage::kNone;
    advance_worker(worker, now_ms);
  }
}

void Broadcaster::abort_pending(const std::string& reason, int64_t now_ms) {
  pending_->report.decided = true;
  pending_->report.reason = reason;
  pending_->report.decision_ms = now_ms - pending_->begun_ms;
  note(BroadcastEventKind::kAborted, nullptr, pending_version(),
       "version " + std::to_string(pending_version()) + " is aborted: " + reason);
  pending_.reset();
  for (auto& [id, worker] : workers_) {
    if (worker.live) advance_worker(worker, now_ms);
  }
}

bool Broadcaster::converged() const {
  if (pending_ || !target_) return false;
  return std::all_of(workers_.begin(), workers_.end(), [this](const auto& entry) {
    return !entry.second.live || serves(entry.second, *target_);
  });
}

void Broadcaster::note_convergence(int64_t now_ms) {
  if (!converged() || target_->report.converged) return;
  target_->report.converged = true;
  target_->report.converged_ms = now_ms - target_->begun_ms;
  note(BroadcastEventKind::kConverged, nullptr, target_version(),
       "every live worker serves version " + std::to_string(target_version()));
}

UpdateReport Broadcaster::report() const { return reported_ ? reported_->report : UpdateReport{}; }

std::vector<FleetWorker> Broadcaster::workers() const {
  std::vector<FleetWorker> fleet;
  for (const auto& [id, worker] : workers_) {
    fleet.push_back(
        {id, worker.name, worker.live, worker.status, std::string(stage_name(worker.stage))});
  }
  return fleet;
}

std::vector<BroadcastMessage> Broadcaster::take_outgoing() { return std::exchange(outgoing_, {}); }
std::vector<BroadcastEvent> Broadcaster::take_events() { return std::exchange(events_, {}); }

}  // namespace warproll
