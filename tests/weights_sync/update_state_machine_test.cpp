#include "weights_sync/update_state_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace warproll {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kStart = 50'000;
constexpr uint32_t kDeadlineMs = 1'000;
const Digest kOldDigest = {1};
const Digest kNewDigest = {2};
const UpdateId kId = {.trainer_epoch = 5, .weight_version = 2, .attempt = 3};

UpdateBegin begin_of(const UpdateId& id) {
  return {id, "tcp", "tcp://127.0.0.1:1", "", "manifest", kDeadlineMs};
}
UpdateId later(uint32_t attempts = 1) {
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

const UpdatePhase kEveryPhase[] = {UpdatePhase::kIdle,      UpdatePhase::kChecking,
                                   UpdatePhase::kDeferred,  UpdatePhase::kAccepted,
                                   UpdatePhase::kReceiving, UpdatePhase::kVerifying,
                                   UpdatePhase::kReady,     UpdatePhase::kInstalling,
                                   UpdatePhase::kCommitted, UpdatePhase::kAborted};

class InPhase : public Machine, public testing::WithParamInterface<UpdatePhase> {
 protected:
  void SetUp() override {
    reach(GetParam());
    ASSERT_EQ(machine.phase(), GetParam());
  }
  [[nodiscard]] bool abortable() const {
    return GetParam() >= UpdatePhase::kChecking && GetParam() <= UpdatePhase::kReady;
  }
  [[nodiscard]] uint64_t version_served() const {
    return GetParam() == UpdatePhase::kCommitted ? 2 : 1;
  }
};

TEST_P(InPhase, MessagesOfAnOlderTrainerChangeNothing) {
  if (GetParam() == UpdatePhase::kIdle) drop(machine.on_trainer_epoch(kId.trainer_epoch, kStart));
  const UpdateId old{4, 9, 99};
  const auto rejected = machine.on_message(begin_of(old), kStart);
  ASSERT_NE(sent<UpdateReject>(rejected), nullptr);
  EXPECT_THAT(sent<UpdateReject>(rejected)->reason, HasSubstr("trainer epoch 4"));
  drop(machine.on_message(UpdateStart{old, {}, ""}, kStart));
  drop(machine.on_message(UpdateCommit{old}, kStart));
  drop(machine.on_message(UpdateAbort{old, "old"}, kStart));
  drop(machine.on_message(Rollback{old}, kStart));
  EXPECT_EQ(machine.phase(), GetParam());
  EXPECT_EQ(machine.stats().fenced, 5u);
}

TEST_P(InPhase, LateDuplicatesOfAnEarlierAttemptAreIgnored) {
  if (GetParam() == UpdatePhase::kIdle) return;
  const UpdateId old{kId.trainer_epoch, 7, kId.attempt - 1};
  EXPECT_THAT(machine.on_message(begin_of(old), kStart), IsEmpty());
  EXPECT_THAT(machine.on_message(UpdateStart{old, {}, ""}, kStart), IsEmpty());
  EXPECT_THAT(machine.on_message(UpdateCommit{old}, kStart), IsEmpty());
  EXPECT_THAT(machine.on_message(UpdateAbort{old, ""}, kStart), IsEmpty());
  EXPECT_THAT(machine.on_message(Rollback{old}, kStart), IsEmpty());
  EXPECT_EQ(machine.phase(), GetParam());
}

TEST_P(InPhase, ARestatedBeginIsAnsweredAgainAndChangesNothing) {
  if (GetParam() == UpdatePhase::kIdle) return;
  const auto actions = machine.on_message(begin_of(kId), kStart + 1);
  EXPECT_EQ(machine.phase(), GetParam());
  switch (GetParam()) {
    case UpdatePhase::kIdle:
    case UpdatePhase::kChecking:
      EXPECT_THAT(actions, IsEmpty());
      break;
    case UpdatePhase::kDeferred:
      ASSERT_NE(sent<UpdateDefer>(actions), nullptr);
      EXPECT_EQ(sent<UpdateDefer>(actions)->pinned_sequences, 4u);
      break;
    case UpdatePhase::kAccepted:
    case UpdatePhase::kReceiving:
    case UpdatePhase::kVerifying:
      EXPECT_NE(sent<UpdateAccept>(actions), nullptr);
      break;
    case UpdatePhase::kReady:
    case UpdatePhase::kInstalling:
      EXPECT_NE(sent<UpdateReady>(actions), nullptr);
      break;
    case UpdatePhase::kCommitted:
      EXPECT_NE(sent<UpdateCommitted>(actions), nullptr);
      break;
    case UpdatePhase::kAborted:
      ASSERT_NE(sent<UpdateFailed>(actions), nullptr);
      EXPECT_THAT(sent<UpdateFailed>(actions)->reason, HasSubstr("bucket 1 is damaged"));
      break;
  }
}

TEST_P(InPhase, ADuplicateOfAnyMessageStartsNoWorkTwice) {
  if (GetParam() == UpdatePhase::kIdle) return;
  const Message messages[] = {begin_of(kId), UpdateStart{kId, {"aa"}, ""}, UpdateCommit{kId}};
  for (const Message& message : messages) {
    drop(machine.on_message(message, kStart));
    const UpdatePhase phase = machine.phase();
    for (const UpdateAction& again : machine.on_message(message, kStart)) {
      EXPECT_NE(std::get_if<SendMessage>(&again), nullptr) << message_name(message);
    }
    EXPECT_EQ(machine.phase(), phase) << message_name(message);
  }
}

TEST_P(InPhase, TheDeadlineAbortsWhatIsNotInstalledYetAndSaysSo) {
  EXPECT_THAT(machine.tick(kStart + 50), IsEmpty());
  const auto actions = machine.tick(kStart + kDeadlineMs);
  EXPECT_EQ(sent<UpdateFailed>(actions) != nullptr, abortable());
  EXPECT_EQ(action<DiscardUpdate>(actions) != nullptr, abortable());
  if (abortable()) {
    EXPECT_EQ(machine.phase(), UpdatePhase::kAborted);
    EXPECT_THAT(sent<UpdateFailed>(actions)->reason, HasSubstr("deadline of 1000 ms"));
  } else {
    EXPECT_EQ(machine.phase(), GetParam());
  }
  EXPECT_EQ(machine.serving().weight_version, version_served());
}

TEST_P(InPhase, AnAbortStopsWhatIsNotInstalledYet) {
  if (GetParam() == UpdatePhase::kIdle) return;
  const auto actions = machine.on_message(UpdateAbort{kId, "no quorum"}, kStart);
  if (abortable()) {
    EXPECT_EQ(machine.phase(), UpdatePhase::kAborted);
    EXPECT_NE(action<DiscardUpdate>(actions), nullptr);
    EXPECT_THAT(sent<UpdateFailed>(actions)->reason, HasSubstr("no quorum"));
  } else {
    EXPECT_EQ(machine.phase(), GetParam());
    EXPECT_EQ(action<DiscardUpdate>(actions), nullptr);
  }
  EXPECT_EQ(machine.serving().weight_version, version_served());
}

TEST_P(InPhase, ANewerBeginSupersedesWhatIsNotInstalledYet) {
  const auto actions = machine.on_message(begin_of(later()), kStart);
  if (GetParam() == UpdatePhase::kInstalling) {
    EXPECT_EQ(machine.phase(), UpdatePhase::kInstalling);
    EXPECT_THAT(actions, IsEmpty());
    return;
  }
  EXPECT_EQ(machine.phase(), UpdatePhase::kChecking);
  EXPECT_EQ(machine.id(), later());
  ASSERT_NE(action<CheckManifest>(actions), nullptr);
  EXPECT_EQ(action<CheckManifest>(actions)->begin.id, later());
  EXPECT_EQ(machine.stats().superseded, abortable() ? 1u : 0u);
  if (!abortable()) return;
  // The old one is stopped before the new one starts.
  ASSERT_NE(std::get_if<DiscardUpdate>(&actions.front()), nullptr);
  EXPECT_EQ(std::get_if<DiscardUpdate>(&actions.front())->id, kId);
  EXPECT_EQ(sent<UpdateFailed>(actions)->id, kId);
}

TEST_P(InPhase, ANewerTrainerEpochEndsWhatItsPredecessorBegan) {
  const auto actions = machine.on_trainer_epoch(kId.trainer_epoch + 1, kStart);
  EXPECT_EQ(sent<UpdateFailed>(actions) != nullptr, abortable());
  EXPECT_EQ(machine.phase(), abortable() ? UpdatePhase::kAborted : GetParam());
}

TEST_P(InPhase, ResultsOfAnUpdateThatIsOverAreIgnored) {
  const UpdateId other{1, 1, 1};
  StandbyAnswer standby;
  standby.acquired = true;
  EXPECT_THAT(machine.on_checked(other, ok_status()), IsEmpty());
  EXPECT_THAT(machine.on_standby(other, standby, kStart), IsEmpty());
  EXPECT_THAT(machine.on_received(other, ok_status()), IsEmpty());
  EXPECT_THAT(machine.on_verified(other, VerifiedWeights{}), IsEmpty());
  EXPECT_THAT(machine.on_installed(other, InstallReport{}), IsEmpty());
  EXPECT_EQ(machine.phase(), GetParam());
}

TEST_P(InPhase, StartAndCommitOfAnUnknownUpdateAreAnsweredWithFailed) {
  const auto start = machine.on_message(UpdateStart{later(), {}, ""}, kStart);
  const auto commit = machine.on_message(UpdateCommit{later()}, kStart);
  ASSERT_NE(sent<UpdateFailed>(start), nullptr);
  ASSERT_NE(sent<UpdateFailed>(commit), nullptr);
  EXPECT_THAT(sent<UpdateFailed>(commit)->reason, HasSubstr("never begun on this worker"));
  EXPECT_EQ(machine.phase(), GetParam());
}

TEST_P(InPhase, TheStatusTellsWhatIsServedAndWhetherItCanBeRolledBack) {
  const WeightStatus status = machine.weight_status();
  EXPECT_EQ(status.serving_version, version_served());
  EXPECT_EQ(status.serving_digest, version_served() == 2 ? kNewDigest : kOldDigest);
  EXPECT_EQ(status.update_state, to_update_state(GetParam()));
  EXPECT_EQ(status.can_rollback, GetParam() == UpdatePhase::kCommitted);
  EXPECT_EQ(status.rollback_version, GetParam() == UpdatePhase::kCommitted ? 1u : 0u);
}

INSTANTIATE_TEST_SUITE_P(Phases, InPhase, testing::ValuesIn(kEveryPhase),
                         [](const auto& phase) { return std::string(to_string(phase.param)); });

using UpdateStateMachineTest = Machine;

TEST_F(UpdateStateMachineTest, AManifestThatDoesNotFitIsRejectedBeforeTheArenaIsAskedFor) {
  reach(UpdatePhase::kChecking);
  const auto actions = machine.on_checked(kId, invalid_argument("tensor 'x' is missing"));
  ASSERT_NE(sent<UpdateReject>(actions), nullptr);
  EXPECT_EQ(sent<UpdateReject>(actions)->reason, "tensor 'x' is missing");
  EXPECT_EQ(action<AcquireStandby>(actions), nullptr);
}

TEST_F(UpdateStateMachineTest, AnAbortThatOvertakesItsBeginKeepsTheUpdateFromStarting) {
  drop(machine.on_message(UpdateAbort{kId, "changed its mind"}, kStart));
  const auto actions = machine.on_message(begin_of(kId), kStart);
  EXPECT_EQ(action<CheckManifest>(actions), nullptr);
  EXPECT_NE(sent<UpdateFailed>(actions), nullptr);
  EXPECT_EQ(machine.phase(), UpdatePhase::kAborted);
}

TEST_F(UpdateStateMachineTest, AStartThatNamesOthersOnlyDoesNotStartThisWorker) {
  reach(UpdatePhase::kAccepted);
  EXPECT_THAT(machine.on_message(UpdateStart{kId, {"bb", "cc"}, ""}, kStart), IsEmpty());
  EXPECT_EQ(machine.phase(), UpdatePhase::kAccepted);
}

TEST_F(UpdateStateMachineTest, PinnedSequencesDeferUntilTheArenaIsFree) {
  reach(UpdatePhase::kDeferred);
  EXPECT_EQ(machine.next_tick_ms(), kStart + 100);
  EXPECT_THAT(machine.tick(kStart + 99), IsEmpty());
  EXPECT_NE(action<AcquireStandby>(machine.tick(kStart + 100)), nullptr);
  EXPECT_THAT(machine.tick(kStart + 101), IsEmpty()) << "asked again before the answer";
  StandbyAnswer standby;
  standby.acquired = true;
  EXPECT_NE(sent<UpdateAccept>(machine.on_standby(kId, standby, kStart + 110)), nullptr);
}

TEST_F(UpdateStateMachineTest, PinMaxCountsOverAttemptsAndItsFallbackComesOnce) {
  reach(UpdatePhase::kDeferred);
  drop(machine.on_message(begin_of(later()), kStart + 300));
  drop(machine.on_checked(later(), ok_status()));
  StandbyAnswer pinned;
  pinned.pinned_sequences = 4;
  drop(machine.on_standby(later(), pinned, kStart + 300));
  EXPECT_EQ(action<PinFallback>(machine.tick(kStart + 499)), nullptr);
  drop(machine.on_standby(later(), pinned, kStart + 499));
  EXPECT_NE(action<PinFallback>(machine.tick(kStart + 500)), nullptr);
  drop(machine.on_standby(later(), pinned, kStart + 500));
  EXPECT_EQ(action<PinFallback>(machine.tick(kStart + 700)), nullptr);
}

TEST_F(UpdateStateMachineTest, AnArenaThatCanNeverBeHadFailsTheUpdate) {
  reach(UpdatePhase::kChecking);
  drop(machine.on_checked(kId, ok_status()));
  StandbyAnswer answer;
  answer.failure = resource_exhausted("weight arena: 9 bytes, limit 8");
  const auto actions = machine.on_standby(kId, answer, kStart);
  EXPECT_THAT(sent<UpdateFailed>(actions)->reason, HasSubstr("9 bytes, limit 8"));
}

TEST_F(UpdateStateMachineTest, AFailedInstallKeepsTheOldVersion) {
  reach(UpdatePhase::kInstalling);
  const auto actions = machine.on_installed(kId, internal_error("the engine is stopping"));
  EXPECT_THAT(sent<UpdateFailed>(actions)->reason, HasSubstr("the engine is stopping"));
  EXPECT_NE(action<DiscardUpdate>(actions), nullptr);
  EXPECT_EQ(machine.serving().weight_version, 1u);
}

TEST_F(UpdateStateMachineTest, ACommitReportsTheFlip) {
  reach(UpdatePhase::kInstalling);
  const auto actions = machine.on_installed(kId, InstallReport{120, 1, 33});
  ASSERT_NE(sent<UpdateCommitted>(actions), nullptr);
  EXPECT_EQ(sent<UpdateCommitted>(actions)->stall_us, 120u);
  EXPECT_EQ(sent<UpdateCommitted>(actions)->stall_steps, 1u);
  EXPECT_EQ(sent<UpdateCommitted>(actions)->in_flight_sequences, 33u);
  EXPECT_EQ(sent<UpdateCommitted>(actions)->weight_digest, kNewDigest);
}

TEST_F(UpdateStateMachineTest, ANewVersionWithTheServingDigestRaisesAnAlarm) {
  reach(UpdatePhase::kVerifying);
  const auto actions = machine.on_verified(kId, VerifiedWeights{kOldDigest, {}, 1, 1});
  ASSERT_NE(action<RaiseAlarm>(actions), nullptr);
  EXPECT_THAT(action<RaiseAlarm>(actions)->text, HasSubstr("weight version 2"));
  EXPECT_EQ(machine.stats().same_digest_alarms, 1u);
  EXPECT_NE(sent<UpdateReady>(actions), nullptr);
}

TEST_F(UpdateStateMachineTest, GoingBackToAnEarlierVersionIsNoAlarm) {
  UpdateStateMachine ahead({.producer_id_hex = "aa"}, {9, kOldDigest});
  drop(ahead.on_message(begin_of(kId), kStart));
  drop(ahead.on_checked(kId, ok_status()));
  StandbyAnswer standby;
  standby.acquired = true;
  drop(ahead.on_standby(kId, standby, kStart));
  drop(ahead.on_message(UpdateStart{kId, {}, ""}, kStart));
  drop(ahead.on_received(kId, ok_status()));
  const auto actions = ahead.on_verified(kId, VerifiedWeights{kOldDigest, {}, 1, 1});
  EXPECT_EQ(action<RaiseAlarm>(actions), nullptr);
  EXPECT_EQ(ahead.stats().same_digest_alarms, 0u);
}

TEST_F(UpdateStateMachineTest, RollbackFlipsToThePreviousVersionAndBack) {
  reach(UpdatePhase::kCommitted);
  const UpdateId back{kId.trainer_epoch, 1, kId.attempt + 1};
  EXPECT_NE(action<RollBack>(machine.on_message(Rollback{back}, kStart)), nullptr);
  const auto done = machine.on_installed(back, InstallReport{});
  ASSERT_NE(sent<RollbackDone>(done), nullptr);
  EXPECT_TRUE(sent<RollbackDone>(done)->done);
  EXPECT_EQ(machine.serving(), (VersionName{1, kOldDigest}));
  const UpdateId forth{kId.trainer_epoch, 2, kId.attempt + 2};
  EXPECT_NE(action<RollBack>(machine.on_message(Rollback{forth}, kStart)), nullptr);
  drop(machine.on_installed(forth, InstallReport{}));
  EXPECT_EQ(machine.serving(), (VersionName{2, kNewDigest}));
}

TEST_F(UpdateStateMachineTest, ARestatedRollbackIsAnsweredAgainWithoutAnotherFlip) {
  reach(UpdatePhase::kCommitted);
  const UpdateId back{kId.trainer_epoch, 1, kId.attempt + 1};
  drop(machine.on_message(Rollback{back}, kStart));
  drop(machine.on_installed(back, InstallReport{}));
  const auto again = machine.on_message(Rollback{back}, kStart);
  EXPECT_EQ(action<RollBack>(again), nullptr);
  ASSERT_NE(sent<RollbackDone>(again), nullptr);
  EXPECT_TRUE(sent<RollbackDone>(again)->done);
}

TEST_F(UpdateStateMachineTest, RollbackAfterTheNextReceiveBeganSaysWhatThereIs) {
  reach(UpdatePhase::kCommitted);
  const UpdateId next = later();
  drop(machine.on_message(begin_of(next), kStart));
  drop(machine.on_checked(next, ok_status()));
  StandbyAnswer standby;
  standby.acquired = true;
  drop(machine.on_standby(next, standby, kStart));
  EXPECT_TRUE(machine.weight_status().can_rollback) << "nothing is overwritten yet";
  drop(machine.on_message(UpdateStart{next, {}, ""}, kStart));
  EXPECT_FALSE(machine.weight_status().can_rollback);
  const auto actions =
      machine.on_message(Rollback{{kId.trainer_epoch, 1, next.attempt + 1}}, kStart);
  ASSERT_NE(sent<RollbackDone>(actions), nullptr);
  EXPECT_FALSE(sent<RollbackDone>(actions)->done);
  EXPECT_THAT(sent<RollbackDone>(actions)->reason, HasSubstr("version 1 is not on this worker"));
  EXPECT_NE(action<DiscardUpdate>(actions), nullptr) << "the receive goes on";
}

TEST_F(UpdateStateMachineTest, NothingIsAwaitedWhenIdle) {
  EXPECT_EQ(machine.next_tick_ms(), std::numeric_limits<int64_t>::max());
  reach(UpdatePhase::kReceiving);
  EXPECT_EQ(machine.next_tick_ms(), kStart + kDeadlineMs);
}

}  // namespace
}  // namespace warproll
