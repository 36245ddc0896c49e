// What holds in every phase of an update: fencing, duplicates, deadlines, aborts, restatements.
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

}  // namespace
}  // namespace warproll
