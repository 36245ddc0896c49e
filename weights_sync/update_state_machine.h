// UpdateStateMachine: the worker's half of the update protocol as a passive, deterministic core. It
// owns no thread, clock, socket or memory: messages of the trainer, results of work and the time
// go in; actions come out. UpdateReceiver (update_receiver.h) performs them on real threads, tests
// perform them in simulated time.
//
// States on the wire (UpdateState), the phases inside them, and what leads out of each:
//
//   state      phase       waits for               then
//   Idle       Idle        Begin                   Checking (action CheckManifest)
//   Receiving  Checking    checked                 ok: AcquireStandby; not ok: Aborted (Reject)
//              Deferred    standby                 acquired: Accepted (Accept)
//                                                  pinned: Deferred (Defer), asked again later;
//                                                  past pin_max_ms PinFallback, once an episode
//              Accepted    Start                   Receiving (action ReceiveWeights); from here on
//                                                  the previous version is gone
//              Receiving   received                ok: Verifying (VerifyWeights); else Aborted
//   Verifying  Verifying   verified                ok: Ready (Ready); else Aborted (Failed)
//   Ready      Ready       Commit                  Installing (action InstallWeights)
//              Installing  installed               ok: Committed (Committed); else Aborted (Failed)
//   Committed  Committed   newer Begin, Rollback   Checking, Installing (action RollBack)
//   Aborted    Aborted     newer Begin, Rollback   Checking, Installing (action RollBack)
//
// From Checking to Ready: Abort, the deadline (counted from the first sight of the Begin), a newer
// Begin or Rollback, or a newer trainer epoch lead to Aborted (Failed, action DiscardUpdate).
// Installing cannot be interrupted: it is shorter than a step or two.
//
// Order of updates: (trainer_epoch, attempt); a trainer raises `attempt` with every Begin and every
// Rollback it makes, whatever their versions. A lower epoch is fenced (told so), a lower attempt is
// a late duplicate (ignored), an equal id is restated (the last answer is sent again), whatever the
// order of arrival.
// Thread: one; no call blocks. Errors: none; a failure is an action and a state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "protocol/messages.h"
#include "protocol/status.h"

namespace warproll {

enum class UpdatePhase : uint8_t {
  kIdle,
  kChecking,
  kDeferred,
  kAccepted,
  kReceiving,
  kVerifying,
  kReady,
  kInstalling,
  kCommitted,
  kAborted,
};
std::string_view to_string(UpdatePhase phase);  // "checking" ...
UpdateState to_update_state(UpdatePhase phase);

// A version as heartbeats name it. weight_version 0 = none.
struct VersionName {
  uint64_t weight_version = 0;
  Digest weight_digest{};
  bool operator==(const VersionName&) const = default;
};

struct UpdateStateMachineOptions {
  std::string producer_id_hex;           // this worker, as UpdateStart.participants names it
  uint32_t defer_retry_ms = 200;         // how often a pinned standby arena is asked for again
  uint32_t pin_max_ms = 60'000;          // longest deferral before the pin fallback
  uint32_t max_deadline_ms = 3'600'000;  // cap of UpdateBegin.deadline_ms, and its value when 0
};

// What the owner has to do. Work on one update is done strictly in the order of its actions.
struct SendMessage {
  Message message;
};
struct CheckManifest {  // answer: on_checked
  UpdateBegin begin;
};
struct AcquireStandby {  // answer: on_standby
  UpdateId id;
};
struct ReceiveWeights {  // answer: on_received
  UpdateStart start;
  int64_t deadline_ms = 0;  // on the clock of `now_ms`
};
struct VerifyWeights {  // answer: on_verified
  UpdateId id;
};
struct InstallWeights {  // flip to the verified weights; answer: on_installed
  UpdateId id;
};
struct RollBack {  // flip to the previous weights; answer: on_installed
  UpdateId id;
};
struct DiscardUpdate {  // stop all work on it promptly, free the standby arena; no answer
  UpdateId id;
};
struct PinFallback {  // pinned sequences of this version follow their fallback policy now; no
                      // answer
  uint64_t weight_version = 0;
};
struct RaiseAlarm {  // for the log
  std::string text;
};
using UpdateAction =
    std::variant<SendMessage, CheckManifest, AcquireStandby, ReceiveWeights, VerifyWeights,
                 InstallWeights, RollBack, DiscardUpdate, PinFallback, RaiseAlarm>;
using UpdateActions = std::vector<UpdateAction>;

struct StandbyAnswer {
  bool acquired = false;
  uint32_t pinned_sequences = 0;  // why not
  Status failure;                 // not ok: no arena will ever do (too large, out of memory)
};
struct VerifiedWeights {
  Digest weight_digest{};
  Digest layout_digest{};
  uint64_t received_bytes = 0;
  uint32_t receive_ms = 0;
};
struct InstallReport {
  uint64_t stall_us = 0;             // longest gap between two steps around the flip, less the
                                     // median step
  uint32_t stall_steps = 0;          // decode steps that did not run because of the flip
  uint32_t in_flight_sequences = 0;  // running at the flip
};

// Absolute counts since the start.
struct UpdateStateMachineStats {
  uint64_t begun = 0;
  uint64_t committed = 0;
  uint64_t rejected = 0;
  uint64_t failed = 0;
  uint64_t deferred = 0;    // updates, not messages
  uint64_t superseded = 0;  // counted in `failed` too
  uint64_t rolled_back = 0;
  uint64_t fenced = 0;  // messages of an older trainer
  uint64_t stale = 0;   // late duplicates, and messages that fit no phase
  uint64_t pin_fallbacks = 0;
  uint64_t same_digest_alarms = 0;  // W6
};

class UpdateStateMachine {
 public:
  // `serving` is what the worker was started with.
  UpdateStateMachine(UpdateStateMachineOptions options, VersionName serving);

  // Any message; those that are not of weight sync are ignored.
  [[nodiscard]] UpdateActions on_message(const Message& message, int64_t now_ms);
  // The trainer's epoch as Welcome and Heartbeat carry it: a newer one ends the older's update.
  [[nodiscard]] UpdateActions on_trainer_epoch(uint64_t trainer_epoch, int64_t now_ms);

  // Results of work; those of an update that is no longer the current one are ignored.
  [[nodiscard]] UpdateActions on_checked(const UpdateId& id, const Status& status);
  [[nodiscard]] UpdateActions on_standby(const UpdateId& id, const StandbyAnswer& answer,
                                         int64_t now_ms);
  [[nodiscard]] UpdateActions on_received(const UpdateId& id, const Status& status);
  [[nodiscard]] UpdateActions on_verified(const UpdateId& id,
                                          const Result<VerifiedWeights>& verified);
  [[nodiscard]] UpdateActions on_installed(const UpdateId& id,
                                           const Result<InstallReport>& installed);

  [[nodiscard]] UpdateActions tick(int64_t now_ms);
  // When tick has something to do next; INT64_MAX = nothing is awaited.
  [[nodiscard]] int64_t next_tick_ms() const;

  [[nodiscard]] UpdatePhase phase() const { return phase_; }
  [[nodiscard]] const UpdateId& id() const { return id_; }
  [[nodiscard]] const VersionName& serving() const { return serving_; }
  [[nodiscard]] WeightStatus weight_status() const;
  [[nodiscard]] const UpdateStateMachineStats& stats() const { return stats_; }

 private:
  UpdateActions on_begin(const UpdateBegin& begin, int64_t now_ms);
  UpdateActions on_start(const UpdateStart& start);
  UpdateActions on_commit(const UpdateCommit& commit);
  UpdateActions on_abort(const UpdateAbort& abort);
  UpdateActions on_rollback(const Rollback& rollback);

  enum class Order { kFenced, kStale, kCurrent, kNewer };
  [[nodiscard]] Order order_of(const UpdateId& id);
  [[nodiscard]] bool is_abortable() const;  // kChecking .. kReady
  UpdateActions answer(Message message);    // remembers it for restating
  UpdateActions restate();
  UpdateActions fail(const std::string& reason);
  UpdateActions supersede(const UpdateId& by);
  UpdateActions finish_rollback(bool done, const std::string& reason);

  const UpdateStateMachineOptions options_;
  VersionName serving_;
  VersionName previous_;  // whole, unless weight_version is 0
  uint64_t highest_served_ = 0;

  UpdatePhase phase_ = UpdatePhase::kIdle;
  UpdateId id_;
  bool rolling_back_ = false;  // the current id is a Rollback's
  uint64_t trainer_epoch_ = 0;
  std::optional<Message> last_answer_;
  int64_t deadline_ms_ = 0;
  uint32_t deadline_length_ms_ = 0;
  VerifiedWeights verified_;

  bool standby_asked_ = false;  // an AcquireStandby is not answered yet
  int64_t next_ask_ms_ = 0;
  // A deferral episode outlives attempts: the pins are held against the fleet, not against one of
  // its attempts.
  std::optional<int64_t> deferred_since_ms_;
  bool fallback_applied_ = false;

  UpdateStateMachineStats stats_;
};

}  // namespace warproll
