#include "weights_sync/update_state_machine.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace warproll {
namespace {

std::string text(const UpdateId& id) {
  return "update of version " + std::to_string(id.weight_version) + " (trainer epoch " +
         std::to_string(id.trainer_epoch) + ", attempt " + std::to_string(id.attempt) + ")";
}

void append(UpdateActions& to, UpdateActions from) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
}

}  // namespace

std::string_view to_string(UpdatePhase phase) {
  switch (phase) {
    case UpdatePhase::kIdle:
      return "idle";
    case UpdatePhase::kChecking:
      return "checking";
    case UpdatePhase::kDeferred:
      return "deferred";
    case UpdatePhase::kAccepted:
      return "accepted";
    case UpdatePhase::kReceiving:
      return "receiving";
    case UpdatePhase::kVerifying:
      return "verifying";
    case UpdatePhase::kReady:
      return "ready";
    case UpdatePhase::kInstalling:
      return "installing";
    case UpdatePhase::kCommitted:
      return "committed";
    case UpdatePhase::kAborted:
      return "aborted";
  }
  return "unknown";
}

UpdateState to_update_state(UpdatePhase phase) {
  switch (phase) {
    case UpdatePhase::kIdle:
      return UpdateState::kIdle;
    case UpdatePhase::kChecking:
    case UpdatePhase::kDeferred:
    case UpdatePhase::kAccepted:
    case UpdatePhase::kReceiving:
      return UpdateState::kReceiving;
    case UpdatePhase::kVerifying:
      return UpdateState::kVerifying;
    case UpdatePhase::kReady:
    case UpdatePhase::kInstalling:
      return UpdateState::kReady;
    case UpdatePhase::kCommitted:
      return UpdateState::kCommitted;
    case UpdatePhase::kAborted:
      return UpdateState::kAborted;
  }
  return UpdateState::kIdle;
}

UpdateStateMachine::UpdateStateMachine(UpdateStateMachineOptions options, VersionName serving)
    : options_(std::move(options)), serving_(serving), highest_served_(serving.weight_version) {}

UpdateActions UpdateStateMachine::on_message(const Message& message, int64_t now_ms) {
  if (const auto* begin = std::get_if<UpdateBegin>(&message)) return on_begin(*begin, now_ms);
  if (const auto* start = std::get_if<UpdateStart>(&message)) return on_start(*start);
  if (const auto* commit = std::get_if<UpdateCommit>(&message)) return on_commit(*commit);
  if (const auto* abort = std::get_if<UpdateAbort>(&message)) return on_abort(*abort);
  if (const auto* rollback = std::get_if<Rollback>(&message)) return on_rollback(*rollback);
  return {};
}

UpdateActions UpdateStateMachine::on_trainer_epoch(uint64_t trainer_epoch, int64_t now_ms) {
  (void)now_ms;
  if (trainer_epoch <= trainer_epoch_) return {};
  trainer_epoch_ = trainer_epoch;
  if (!is_abortable()) return {};
  return fail("trainer epoch " + std::to_string(trainer_epoch) + " has replaced epoch " +
              std::to_string(id_.trainer_epoch) + " that began it");
}

UpdateStateMachine::Order UpdateStateMachine::order_of(const UpdateId& id) {
  if (id.trainer_epoch < trainer_epoch_) {
    ++stats_.fenced;
    return Order::kFenced;
  }
  trainer_epoch_ = id.trainer_epoch;
  if (id == id_ && phase_ != UpdatePhase::kIdle) return Order::kCurrent;
  const auto rank = [](const UpdateId& update) {
    return std::pair(update.trainer_epoch, update.attempt);
  };
  if (phase_ != UpdatePhase::kIdle && rank(id) <= rank(id_)) {
    ++stats_.stale;
    return Order::kStale;
  }
  return Order::kNewer;
}

bool UpdateStateMachine::is_abortable() const {
  return phase_ >= UpdatePhase::kChecking && phase_ <= UpdatePhase::kReady;
}

UpdateActions UpdateStateMachine::answer(Message message) {
  last_answer_ = message;
  UpdateActions actions;
  actions.push_back(SendMessage{std::move(message)});
  return actions;
}

UpdateActions UpdateStateMachine::restate() {
  UpdateActions actions;
  if (last_answer_) actions.push_back(SendMessage{*last_answer_});
  return actions;
}

UpdateActions UpdateStateMachine::fail(const std::string& reason) {
  UpdateActions actions;
  actions.push_back(DiscardUpdate{id_});
  phase_ = UpdatePhase::kAborted;
  ++stats_.failed;
  append(actions, answer(UpdateFailed{id_, reason}));
  return actions;
}

UpdateActions UpdateStateMachine::supersede(const UpdateId& by) {
  if (!is_abortable()) return {};
  ++stats_.superseded;
  return fail("superseded by the " + text(by));
}

UpdateActions UpdateStateMachine::on_begin(const UpdateBegin& begin, int64_t now_ms) {
  switch (order_of(begin.id)) {
    case Order::kFenced:
      return {SendMessage{
          UpdateReject{begin.id, "fenced: trainer epoch " + std::to_string(begin.id.trainer_epoch) +
                                     ", wanted at least " + std::to_string(trainer_epoch_)}}};
    case Order::kStale:
      return {};
    case Order::kCurrent:
      return restate();
    case Order::kNewer:
      break;
  }
  if (phase_ == UpdatePhase::kInstalling) {
    ++stats_.stale;  // the trainer restates it; by then the flip is over
    return {};
  }
  UpdateActions actions = supersede(begin.id);
  ++stats_.begun;
  id_ = begin.id;
  phase_ = UpdatePhase::kChecking;
  rolling_back_ = false;
  last_answer_.reset();
  standby_asked_ = false;
  deadline_length_ms_ = begin.deadline_ms == 0
                            ? options_.max_deadline_ms
                            : std::min(begin.deadline_ms, options_.max_deadline_ms);
  deadline_ms_ = now_ms + deadline_length_ms_;
  actions.push_back(CheckManifest{begin});
  return actions;
}

UpdateActions UpdateStateMachine::on_start(const UpdateStart& start) {
  switch (order_of(start.id)) {
    case Order::kFenced:
      return {SendMessage{
          UpdateFailed{start.id, "fenced by trainer epoch " + std::to_string(trainer_epoch_)}}};
    case Order::kStale:
      return {};
    case Order::kNewer:
      return {SendMessage{
          UpdateFailed{start.id, "the " + text(start.id) + " was never begun on this worker"}}};
    case Order::kCurrent:
      break;
  }
  if (phase_ != UpdatePhase::kAccepted) {
    // Bytes already flow, or it is over: the answer to that is what the trainer lacks.
    if (phase_ >= UpdatePhase::kReady) return restate();
    ++stats_.stale;
    return {};
  }
  const auto& names = start.participants;
  if (!names.empty() &&
      std::find(names.begin(), names.end(), options_.producer_id_hex) == names.end()) {
    ++stats_.stale;  // a group without this worker; its own Start comes later
    return {};
  }
  phase_ = UpdatePhase::kReceiving;
  previous_ = {};
  return {ReceiveWeights{start, deadline_ms_}};
}

UpdateActions UpdateStateMachine::on_commit(const UpdateCommit& commit) {
  switch (order_of(commit.id)) {
    case Order::kFenced:
      return {SendMessage{
          UpdateFailed{commit.id, "fenced by trainer epoch " + std::to_string(trainer_epoch_)}}};
    case Order::kStale:
      return {};
    case Order::kNewer:
      return {SendMessage{
          UpdateFailed{commit.id, "the " + text(commit.id) + " was never begun on this worker"}}};
    case Order::kCurrent:
      break;
  }
  if (phase_ == UpdatePhase::kReady) {
    phase_ = UpdatePhase::kInstalling;
    return {InstallWeights{id_}};
  }
  if (phase_ > UpdatePhase::kInstalling) return restate();
  ++stats_.stale;
  return {};
}

UpdateActions UpdateStateMachine::on_abort(const UpdateAbort& abort) {
  switch (order_of(abort.id)) {
    case Order::kFenced:
    case Order::kStale:
      return {};
    case Order::kNewer: {
      if (phase_ == UpdatePhase::kInstalling) return {};
      // Its Begin is still on the way: remembered as over, so that it does not start then.
      UpdateActions actions = supersede(abort.id);
      id_ = abort.id;
      rolling_back_ = false;
      phase_ = UpdatePhase::kAborted;
      append(actions, answer(UpdateFailed{id_, "aborted by the trainer: " + abort.reason}));
      return actions;
    }
    case Order::kCurrent:
      break;
  }
  if (is_abortable()) return fail("aborted by the trainer: " + abort.reason);
  return restate();
}

UpdateActions UpdateStateMachine::on_rollback(const Rollback& rollback) {
  switch (order_of(rollback.id)) {
    case Order::kFenced:
      return {SendMessage{RollbackDone{
          rollback.id, false, "fenced by trainer epoch " + std::to_string(trainer_epoch_)}}};
    case Order::kStale:
      return {};
    case Order::kCurrent:
      return restate();
    case Order::kNewer:
      break;
  }
  if (phase_ == UpdatePhase::kInstalling) {
    ++stats_.stale;
    return {};
  }
  UpdateActions actions = supersede(rollback.id);
  id_ = rollback.id;
  rolling_back_ = true;
  last_answer_.reset();
  const uint64_t to = rollback.id.weight_version;
  if (serving_.weight_version == to) {
    append(actions, finish_rollback(true, "already serving it"));
  } else if (previous_.weight_version == to && to != 0) {
    phase_ = UpdatePhase::kInstalling;
    actions.push_back(RollBack{id_});
  } else {
    append(actions, finish_rollback(
                        false, "version " + std::to_string(to) + " is not on this worker; it has " +
                                   std::to_string(serving_.weight_version) +
                                   (previous_.weight_version == 0
                                        ? std::string(" only")
                                        : " and " + std::to_string(previous_.weight_version))));
  }
  return actions;
}

UpdateActions UpdateStateMachine::finish_rollback(bool done, const std::string& reason) {
  phase_ = done ? UpdatePhase::kCommitted : UpdatePhase::kAborted;
  return answer(RollbackDone{id_, done, reason});
}

WeightStatus UpdateStateMachine::weight_status() const {
  return {.serving_version = serving_.weight_version,
          .serving_digest = serving_.weight_digest,
          .update_state = to_update_state(phase_),
          .update_version = id_.weight_version,
          .update_attempt = id_.attempt,
          .can_rollback = previous_.weight_version != 0,
          .rollback_version = previous_.weight_version};
}

}  // namespace warproll
