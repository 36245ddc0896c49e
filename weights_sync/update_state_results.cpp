// What comes of the work that the core asked for, and of time.
#include <algorithm>
#include <limits>
#include <utility>

#include "weights_sync/update_state_machine.h"

namespace warproll {

UpdateActions UpdateStateMachine::on_checked(const UpdateId& id, const Status& status) {
  if (id != id_ || phase_ != UpdatePhase::kChecking || standby_asked_) return {};
  UpdateActions actions;
  if (!status.ok()) {
    actions.push_back(DiscardUpdate{id_});
    phase_ = UpdatePhase::kAborted;
    ++stats_.rejected;
    actions.push_back(answer(UpdateReject{id_, status.message()}).front());
    return actions;
  }
  standby_asked_ = true;
  actions.push_back(AcquireStandby{id_});
  return actions;
}

UpdateActions UpdateStateMachine::on_standby(const UpdateId& id, const StandbyAnswer& standby,
                                             int64_t now_ms) {
  const bool waits = phase_ == UpdatePhase::kChecking || phase_ == UpdatePhase::kDeferred;
  if (id != id_ || !waits || !standby_asked_) return {};
  standby_asked_ = false;
  if (!standby.failure.ok()) return fail(standby.failure.message());
  if (standby.acquired) {
    deferred_since_ms_.reset();
    fallback_applied_ = false;
    phase_ = UpdatePhase::kAccepted;
    return answer(UpdateAccept{id_});
  }
  if (!deferred_since_ms_) deferred_since_ms_ = now_ms;
  next_ask_ms_ = now_ms + options_.defer_retry_ms;
  const bool first = phase_ != UpdatePhase::kDeferred;
  phase_ = UpdatePhase::kDeferred;
  const UpdateDefer defer{id_, standby.pinned_sequences, options_.defer_retry_ms};
  if (!first) {
    last_answer_ = defer;
    return {};
  }
  ++stats_.deferred;
  return answer(defer);
}

UpdateActions UpdateStateMachine::on_received(const UpdateId& id, const Status& status) {
  if (id != id_ || phase_ != UpdatePhase::kReceiving) return {};
  if (!status.ok()) return fail(status.message());
  phase_ = UpdatePhase::kVerifying;
  return {VerifyWeights{id_}};
}

UpdateActions UpdateStateMachine::on_verified(const UpdateId& id,
                                              const Result<VerifiedWeights>& verified) {
  if (id != id_ || phase_ != UpdatePhase::kVerifying) return {};
  if (!verified.ok()) return fail(verified.status().message());
  verified_ = *verified;
  phase_ = UpdatePhase::kReady;
  UpdateActions actions;
  const bool is_new = id_.weight_version > highest_served_;
  if (is_new && serving_.weight_version != 0 && verified_.weight_digest == serving_.weight_digest) {
    ++stats_.same_digest_alarms;
    actions.push_back(RaiseAlarm{
        "weight version " + std::to_string(id_.weight_version) +
        " has the digest of the serving version " + std::to_string(serving_.weight_version) + ", " +
        to_hex(serving_.weight_digest) + ": the trainer published unchanged weights"});
  }
  actions.push_back(answer(UpdateReady{id_, verified_.weight_digest, verified_.layout_digest,
                                       verified_.received_bytes, verified_.receive_ms})
                        .front());
  return actions;
}

UpdateActions UpdateStateMachine::on_installed(const UpdateId& id,
                                               const Result<InstallReport>& installed) {
  if (id != id_ || phase_ != UpdatePhase::kInstalling) return {};
  if (!installed.ok()) {
    if (rolling_back_) return finish_rollback(false, installed.status().message());
    return fail("install: " + installed.status().message());
  }
  if (rolling_back_) {
    std::swap(serving_, previous_);
    ++stats_.rolled_back;
    return finish_rollback(true, "");
  }
  previous_ = serving_;
  serving_ = {id_.weight_version, verified_.weight_digest};
  highest_served_ = std::max(highest_served_, id_.weight_version);
  phase_ = UpdatePhase::kCommitted;
  ++stats_.committed;
  return answer(UpdateCommitted{id_, verified_.weight_digest, installed->stall_us,
                                installed->stall_steps, installed->in_flight_sequences});
}

UpdateActions UpdateStateMachine::tick(int64_t now_ms) {
  if (!is_abortable()) return {};
  if (now_ms >= deadline_ms_) {
    return fail("its deadline of " + std::to_string(deadline_length_ms_) +
                " ms passed while it was " + std::string(to_string(phase_)));
  }
  UpdateActions actions;
  if (phase_ != UpdatePhase::kDeferred || standby_asked_) return actions;
  if (!fallback_applied_ && now_ms >= *deferred_since_ms_ + options_.pin_max_ms) {
    fallback_applied_ = true;
    ++stats_.pin_fallbacks;
    actions.push_back(PinFallback{previous_.weight_version});
    next_ask_ms_ = now_ms;
  }
  if (now_ms >= next_ask_ms_) {
    standby_asked_ = true;
    actions.push_back(AcquireStandby{id_});
  }
  return actions;
}

int64_t UpdateStateMachine::next_tick_ms() const {
  if (!is_abortable()) return std::numeric_limits<int64_t>::max();
  if (phase_ != UpdatePhase::kDeferred || standby_asked_) return deadline_ms_;
  int64_t next = std::min(deadline_ms_, next_ask_ms_);
  if (!fallback_applied_) next = std::min(next, *deferred_since_ms_ + options_.pin_max_ms);
  return next;
}

}  // namespace warproll
