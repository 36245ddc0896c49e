// The rules of single steps: checks, pins, installs, alarms, rollbacks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/weights_sync/update_machine_fixture.h"

namespace warproll {
namespace {

using namespace update_machine_fixture;
using testing::HasSubstr;
using testing::IsEmpty;

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
