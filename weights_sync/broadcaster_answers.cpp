// What workers say.
#include <algorithm>
#include <utility>

#include "weights_sync/broadcaster.h"
#include "weights_sync/broadcaster_state.h"

namespace warproll {
namespace {

bool is_updating(UpdateState state) {
  return state == UpdateState::kReceiving || state == UpdateState::kVerifying ||
         state == UpdateState::kReady;
}

// What the next heartbeat will say: the version served so far is the previous one.
void note_flip(WeightStatus& status, uint64_t to_version) {
  if (status.serving_version == to_version) return;
  status.can_rollback = status.serving_version != 0;
  status.rollback_version = status.serving_version;
  status.serving_version = to_version;
}

}  // namespace

void Broadcaster::on_message(const Envelope& from, const Message& message, int64_t now_ms) {
  if (const auto* hello = std::get_if<Hello>(&message)) {
    on_hello(from, *hello, now_ms);
  } else {
    const auto found = workers_.find(from.producer_id);
    if (found == workers_.end() || found->second.epoch != from.epoch) return;
    Worker& worker = found->second;
    if (const auto* bye = std::get_if<Bye>(&message)) {
      on_worker_lost(worker.id, "bye: " + bye->reason, now_ms);
      return;
    }
    worker.live = true;
    worker.last_seen_ms = now_ms;
    if (const auto* heartbeat = std::get_if<Heartbeat>(&message)) {
      on_weight_status(worker, heartbeat->weights);
    } else {
      on_answer(worker, message, now_ms);
    }
  }
  advance(now_ms);
}

void Broadcaster::on_hello(const Envelope& from, const Hello& hello, int64_t now_ms) {
  Worker& worker = workers_[from.producer_id];
  if (from.epoch < worker.epoch) return;  // of a process that has been replaced
  const bool is_new_process = worker.name.empty() || from.epoch != worker.epoch;
  if (is_new_process) {
    worker = Worker{};
    worker.id = from.producer_id;
    worker.epoch = from.epoch;
  }
  worker.name =
      hello.worker_name.empty() ? to_hex(Digest(worker.id)).substr(0, 8) : hello.worker_name;
  worker.transports = hello.transports;
  worker.environment = hello.environment;
  worker.last_seen_ms = now_ms;
  if (!worker.live) {
    note(BroadcastEventKind::kWorkerJoined, &worker, hello.weights.serving_version,
         worker.name + " serves version " + std::to_string(hello.weights.serving_version));
  }
  worker.live = true;
  on_weight_status(worker, hello.weights);
}

void Broadcaster::on_worker_lost(const ProducerId& id, const std::string& why, int64_t now_ms) {
  const auto found = workers_.find(id);
  if (found == workers_.end() || !found->second.live) return;
  Worker& worker = found->second;
  worker.live = false;
  if (worker.offer) report_of(*worker.offer, worker).reason = "lost: " + why;
  note(BroadcastEventKind::kWorkerLost, &worker, worker.status.serving_version,
       worker.name + " is lost: " + why);
  if (pending_) decide(now_ms);
}

void Broadcaster::on_weight_status(Worker& worker, const WeightStatus& status) {
  worker.status = status;
  if (worker.stage == Stage::kCommitting && worker.offer && serves(worker, *worker.offer)) {
    worker.stage = Stage::kNone;
    report_of(*worker.offer, worker).committed = true;
  }
  if (worker.stage == Stage::kAborting && !is_updating(status.update_state)) {
    worker.stage = Stage::kNone;
  }
}

void Broadcaster::on_answer(Worker& worker, const Message& message, int64_t now_ms) {
  const auto is_for_now = [&worker](const auto* answer) {
    return answer != nullptr && answer->id == worker.update && worker.stage != Stage::kNone;
  };
  if (const auto* accept = std::get_if<UpdateAccept>(&message); is_for_now(accept)) {
    if (worker.stage != Stage::kBegun && worker.stage != Stage::kDeferred) return;
    worker.stage = Stage::kAccepted;
    note(BroadcastEventKind::kWorkerAccepted, &worker, worker.update.weight_version,
         worker.name + " accepts version " + std::to_string(worker.update.weight_version));
  } else if (const auto* defer = std::get_if<UpdateDefer>(&message); is_for_now(defer)) {
    if (worker.stage != Stage::kBegun) return;
    worker.stage = Stage::kDeferred;
    report_of(*worker.offer, worker).reason =
        "deferred by " + std::to_string(defer->pinned_sequences) + " pinned sequences";
    note(BroadcastEventKind::kWorkerDeferred, &worker, worker.update.weight_version,
         worker.name + " " + report_of(*worker.offer, worker).reason);
  } else if (const auto* reject = std::get_if<UpdateReject>(&message); is_for_now(reject)) {
    if (worker.stage == Stage::kAborting) {
      worker.stage = Stage::kNone;
      return;
    }
    if (worker.stage == Stage::kRejected) return;
    worker.stage = Stage::kRejected;
    worker.retry_at_ms = now_ms + (static_cast<int64_t>(options_.retry_ms) << kMaxDoublings);
    report_of(*worker.offer, worker).reason = reject->reason;
    note(BroadcastEventKind::kWorkerRejected, &worker, worker.update.weight_version,
         worker.name + " rejects version " + std::to_string(worker.update.weight_version) + ": " +
             reject->reason);
  } else if (const auto* ready = std::get_if<UpdateReady>(&message); is_for_now(ready)) {
    on_ready(worker, *ready, now_ms);
  } else if (const auto* failed = std::get_if<UpdateFailed>(&message); is_for_now(failed)) {
    on_failed(worker, failed->reason, now_ms);
  } else if (const auto* committed = std::get_if<UpdateCommitted>(&message);
             is_for_now(committed)) {
    on_committed(worker, *committed, now_ms);
  } else if (const auto* done = std::get_if<RollbackDone>(&message); is_for_now(done)) {
    if (worker.stage != Stage::kRollingBack) return;
    worker.stage = Stage::kNone;
    if (done->done) {
      note_flip(worker.status, done->id.weight_version);
      worker.status.serving_digest = worker.offer->offer.weight_digest;
      report_of(*worker.offer, worker).committed = true;
    }
    note(BroadcastEventKind::kWorkerRolledBack, &worker, done->id.weight_version,
         worker.name + (done->done ? " is back on version " : " cannot flip back to version ") +
             std::to_string(done->id.weight_version) +
             (done->reason.empty() ? "" : ": " + done->reason));
  }
}

void Broadcaster::on_ready(Worker& worker, const UpdateReady& ready, int64_t now_ms) {
  // Accept or Start may still be unanswered here: a restated answer overtakes.
  if (worker.stage < Stage::kBegun || worker.stage > Stage::kStarted) return;
  Digest& wanted = worker.offer->offer.weight_digest;
  if (wanted == Digest{}) wanted = ready.weight_digest;
  if (ready.weight_digest != wanted) {
    send(worker,
         UpdateAbort{worker.update,
                     "weight digest " + to_hex(ready.weight_digest) + ", wanted " + to_hex(wanted)},
         now_ms);
    on_failed(worker, "weight digest " + to_hex(ready.weight_digest) + ", wanted " + to_hex(wanted),
              now_ms);
    return;
  }
  worker.stage = Stage::kReady;
  if (worker.group) worker.group->waiting.erase(worker.id);
  WorkerUpdateReport& report = report_of(*worker.offer, worker);
  report.received_bytes = ready.received_bytes;
  report.receive_ms = ready.receive_ms;
  report.reason.clear();
  note(BroadcastEventKind::kWorkerReady, &worker, worker.update.weight_version,
       worker.name + " is ready with version " + std::to_string(worker.update.weight_version) +
           " after " + std::to_string(ready.receive_ms) + " ms");
}

void Broadcaster::on_failed(Worker& worker, const std::string& reason, int64_t now_ms) {
  if (worker.stage == Stage::kAborting) {
    worker.stage = Stage::kNone;
    return;
  }
  if (worker.stage < Stage::kBegun || worker.stage > Stage::kCommitting) return;
  report_of(*worker.offer, worker).reason = reason;
  note(BroadcastEventKind::kWorkerFailed, &worker, worker.update.weight_version,
       worker.name + " failed: " + reason);
  const uint32_t doublings =
      std::min<uint32_t>(worker.attempts > 0 ? worker.attempts - 1 : 0, kMaxDoublings);
  worker.retry_at_ms = now_ms + (static_cast<int64_t>(options_.retry_ms) << doublings);
  const bool is_last = worker.offer == pending_ && worker.attempts >= options_.max_attempts;
  worker.stage = is_last ? Stage::kGaveUp : Stage::kNone;
}

void Broadcaster::on_committed(Worker& worker, const UpdateCommitted& committed, int64_t now_ms) {
  note_flip(worker.status, committed.id.weight_version);
  worker.status.serving_digest = committed.weight_digest;
  if (worker.stage != Stage::kCommitting) return;
  worker.stage = Stage::kNone;
  worker.retry_at_ms = now_ms + options_.restate_ms;  // a late heartbeat may show the old version
  WorkerUpdateReport& report = report_of(*worker.offer, worker);
  report.committed = true;
  report.stall_us = committed.stall_us;
  report.stall_steps = committed.stall_steps;
  report.in_flight_sequences = committed.in_flight_sequences;
  note(BroadcastEventKind::kWorkerCommitted, &worker, committed.id.weight_version,
       worker.name + " serves version " + std::to_string(committed.id.weight_version) + ": stall " +
           std::to_string(committed.stall_us) + " us, " + std::to_string(committed.stall_steps) +
           " steps, " + std::to_string(committed.in_flight_sequences) + " sequences in flight");
}

}  // namespace warproll
