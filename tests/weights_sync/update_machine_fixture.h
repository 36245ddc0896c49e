// A worker's UpdateStateMachine brought into any phase of one update, and what its actions say.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "weights_sync/update_state_machine.h"

namespace warproll::update_machine_fixture {

inline constexpr int64_t kStart = 50'000;
inline constexpr uint32_t kDeadlineMs = 1'000;
inline const Digest kOldDigest = {1};
inline const Digest kNewDigest = {2};
inline const UpdateId kId = {.trainer_epoch = 5, .weight_version = 2, .attempt = 3};

inline UpdateBegin begin_of(const UpdateId& id) {
  return {id, "tcp", "tcp://127.0.0.1:1", "", "manifest", kDeadlineMs};
}
inline UpdateId later(uint32_t attempts = 1) {
  return {kId.trainer_epoch, kId.weight_version + 1, kId.attempt + attempts};
}

template <typename T>
const T* action(const UpdateActions& actions) {
  for (const UpdateAction& each : actions) {
    if (const auto* found = std::get_if<T>(&each)) return found;
  }
  return nullptr;
}
template <typename T>
const T* sent(const UpdateActions& actions) {
  for (const UpdateAction& each : actions) {
    const auto* message = std::get_if<SendMessage>(&each);
    if (message == nullptr) continue;
    if (const auto* found = std::get_if<T>(&message->message)) return found;
  }
  return nullptr;
}

class Machine : public testing::Test {
 protected:
  // Brings the update kId to the phase.
  void reach(UpdatePhase phase) {
    if (phase == UpdatePhase::kIdle) return;
    drop(machine.on_message(begin_of(kId), kStart));
    if (phase == UpdatePhase::kChecking) return;
    drop(machine.on_checked(kId, ok_status()));
    StandbyAnswer standby;
    if (phase == UpdatePhase::kDeferred) {
      standby.pinned_sequences = 4;
      drop(machine.on_standby(kId, standby, kStart));
      return;
    }
    standby.acquired = true;
    drop(machine.on_standby(kId, standby, kStart));
    if (phase == UpdatePhase::kAccepted) return;
    drop(machine.on_message(UpdateStart{kId, {"aa"}, ""}, kStart));
    if (phase == UpdatePhase::kReceiving) return;
    if (phase == UpdatePhase::kAborted) {
      drop(machine.on_received(kId, data_loss("bucket 1 is damaged")));
      return;
    }
    drop(machine.on_received(kId, ok_status()));
    if (phase == UpdatePhase::kVerifying) return;
    drop(machine.on_verified(kId, VerifiedWeights{kNewDigest, {}, 100, 7}));
    if (phase == UpdatePhase::kReady) return;
    drop(machine.on_message(UpdateCommit{kId}, kStart));
    if (phase == UpdatePhase::kInstalling) return;
    drop(machine.on_installed(kId, InstallReport{9, 1, 2}));
  }
  static void drop(const UpdateActions&) {}

  UpdateStateMachine machine{{.producer_id_hex = "aa", .defer_retry_ms = 100, .pin_max_ms = 500},
                             {1, kOldDigest}};
};

inline const UpdatePhase kEveryPhase[] = {UpdatePhase::kIdle,      UpdatePhase::kChecking,
                                          UpdatePhase::kDeferred,  UpdatePhase::kAccepted,
                                          UpdatePhase::kReceiving, UpdatePhase::kVerifying,
                                          UpdatePhase::kReady,     UpdatePhase::kInstalling,
                                          UpdatePhase::kCommitted, UpdatePhase::kAborted};

}  // namespace warproll::update_machine_fixture
