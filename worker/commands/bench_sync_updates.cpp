// A SyncWorker's updates: messages between the Broadcaster, its own receiver and the mates'.
#include <utility>
#include <variant>

#include "worker/commands/bench_sync_mate.h"
#include "worker/commands/bench_sync_worker.h"
#include "worker/terminal/stop_signal.h"

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds kTurn(200);

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch())
      .count();
}

}  // namespace

Status SyncWorker::add_mate(SyncMate& mate) {
  WARPROLL_TRY_ASSIGN(hello, mate.hello());
  mates_.push_back(&mate);
  broadcaster_.on_message(mate.envelope(), hello, now_ms());
  return ok_status();
}

Status SyncWorker::pump() {
  if (stop_.requested() || stop_.wait_until(Clock::now())) {
    return aborted("stopped by a signal");
  }
  WARPROLL_TRY(engine_->failure());
  auto message = from_worker_.pop(Clock::now() + kTurn);
  while (message) {
    note(*message);
    broadcaster_.on_message(worker_, *message, now_ms());
    message = from_worker_.try_pop();
  }
  broadcaster_.tick(now_ms());
  for (BroadcastMessage& out : broadcaster_.take_outgoing()) {
    if (out.to == worker_.producer_id) {
      receiver_->handle(out.message);
    } else {
      for_mates_[out.to].push_back(std::move(out.message));
    }
  }
  static_cast<void>(broadcaster_.take_events());
  for (SyncMate* mate : mates_) WARPROLL_TRY(turn_of(*mate));
  return restart_ended();
}

Status SyncWorker::turn_of(SyncMate& mate) {
  WARPROLL_TRY_ASSIGN(answers,
                      mate.turn(std::exchange(for_mates_[mate.envelope().producer_id], {})));
  for (const Message& answer : answers) {
    if (const auto* failed = std::get_if<UpdateFailed>(&answer)) failure_ = failed->reason;
    broadcaster_.on_message(mate.envelope(), answer, now_ms());
  }
  return ok_status();
}

Status SyncWorker::take_turn(const std::vector<Message>& messages, std::vector<Message>& answers) {
  WARPROLL_TRY(engine_->failure());
  for (const Message& message : messages) {
    const auto* begin = std::get_if<UpdateBegin>(&message);
    if (begin != nullptr && begin->id != begun_) {  // not a restated one
      current_ = {};
      current_.begun = Clock::now();
      begun_ = begin->id;
    }
    receiver_->handle(message);
  }
  while (auto message = from_worker_.try_pop()) {
    note(*message);
    answers.push_back(std::move(*message));
  }
  return restart_ended();
}

void SyncWorker::note(const Message& message) {
  const Clock::time_point now = Clock::now();
  if (std::holds_alternative<UpdateAccept>(message)) current_.accepted = now;
  if (const auto* ready = std::get_if<UpdateReady>(&message)) {
    current_.ready = now;
    current_.weight_digest = ready->weight_digest;
    current_.layout_digest = ready->layout_digest;
  }
  if (const auto* committed = std::get_if<UpdateCommitted>(&message)) {
    current_.committed = now;
    current_.flip_us = committed->stall_us;
    current_.in_flight_sequences = committed->in_flight_sequences;
  }
  if (const auto* failed = std::get_if<UpdateFailed>(&message)) failure_ = failed->reason;
  if (const auto* rejected = std::get_if<UpdateReject>(&message)) failure_ = rejected->reason;
}

Result<SyncUpdate> SyncWorker::update(UpdateOffer offer) {
  const uint64_t version = offer.weight_version;
  current_ = {};
  failure_.clear();
  current_.begun = Clock::now();
  WARPROLL_TRY(broadcaster_.begin_update(std::move(offer), now_ms()));
  while (!broadcaster_.converged() || broadcaster_.target_version() != version) {
    WARPROLL_TRY(pump());
    const UpdateReport report = broadcaster_.report();
    if (!report.decided || report.committed) continue;
    return aborted("the update was given up: " + report.reason +
                   (failure_.empty() ? "" : "; the worker: " + failure_));
  }
  return last_update();
}

SyncUpdate SyncWorker::last_update() const {
  SyncUpdate update = current_;
  update.receive = transport_.times();
  return update;
}

}  // namespace warproll
