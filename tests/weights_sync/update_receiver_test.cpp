// UpdateReceiver on its real threads: reloads, transfers that stand still, pins, installs, rollbacks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/weights_sync/update_receiver_fixture.h"

namespace warproll {
namespace {

using namespace update_receiver_fixture;
using testing::HasSubstr;

TEST_F(Receiver, AColdStartAndEveryReloadGiveTheSameArenaAsAColdLoad) {
  start();
  EXPECT_EQ(engine->layout_digest, cold_layout_digest(1));
  EXPECT_EQ(update_to(v2), cold_layout_digest(2));
  EXPECT_EQ(update_to(arith(3, 3)), cold_layout_digest(3));
  EXPECT_EQ(update_to(arith(1, 4)), cold_layout_digest(1));
  EXPECT_EQ(engine->weight_version, 4u);
  EXPECT_EQ(layout_digest(engine->layout, engine->arena), cold_layout_digest(1));
  EXPECT_EQ(receiver->weight_status().serving_digest, arith(1, 4).manifest->weight_digest);
}

TEST_F(Receiver, AReloadAfterPoisoningTheStandbyArenaGivesTheSameArena) {
  start();
  update_to(v2);
  StagedWeightsPtr old = receiver->serving();
  update_to(arith(3, 3));
  // The arena of v2 is the standby now; nobody reads it. Nothing of it may survive a reload.
  auto* bytes = const_cast<std::byte*>(old->arena.data());
  std::fill(bytes, bytes + old->arena.size(), std::byte{0xff});
  old.reset();
  EXPECT_EQ(update_to(arith(1, 4)), cold_layout_digest(1));
}

TEST_F(Receiver, AWorkerWithoutACheckpointServesNothingUntilItsFirstUpdate) {
  receiver.emplace(options);
  receiver->start();
  EXPECT_EQ(receiver->weight_status().serving_version, 0u);
  EXPECT_EQ(update_to(v2), cold_layout_digest(2));
  EXPECT_EQ(receiver->weight_status().serving_version, 2u);
  EXPECT_FALSE(receiver->weight_status().can_rollback);
}

TEST_F(Receiver, AnAbortBeforeAnyPartLeavesTheOldVersionAndTheNextUpdateWorks) {
  start();
  const int parts = 2 * static_cast<int>(v2.manifest->entries.size());
  for (int part = 0; part <= parts; ++part) {
    transport.stop_at(part);
    const UpdateId id = begin(v2);
    ASSERT_TRUE(next<UpdateAccept>());
    receiver->handle(UpdateStart{id, {}, ""});
    ASSERT_TRUE(wait_for([&] { return transport.stopped(); }));
    receiver->handle(UpdateAbort{id, "part " + std::to_string(part)});
    const auto failed = next<UpdateFailed>();
    ASSERT_TRUE(failed);
    EXPECT_THAT(failed->reason, HasSubstr("part " + std::to_string(part)));
    EXPECT_EQ(receiver->weight_status().serving_version, 1u);
    ASSERT_TRUE(wait_for([&] { return !transport.stopped(); }));
  }
  EXPECT_EQ(layout_digest(engine->layout, engine->arena), cold_layout_digest(1));
  transport.release();
  EXPECT_EQ(update_to(v2), cold_layout_digest(2));
}

TEST_F(Receiver, NoCallWaitsForATransferThatStandsStill) {
  start();
  transport.stop_at(3);
  const UpdateId id = begin(v2);
  ASSERT_TRUE(next<UpdateAccept>());
  receiver->handle(UpdateStart{id, {}, ""});
  ASSERT_TRUE(wait_for([&] { return transport.stopped(); }));
  const auto started = Clock::now();
  for (int i = 0; i < 1000; ++i) {
    receiver->handle(UpdateStart{id, {}, ""});
    receiver->set_trainer_epoch(1);
    (void)receiver->weight_status();
    (void)receiver->stats();
  }
  EXPECT_LT(Clock::now() - started, std::chrono::seconds(5));
  EXPECT_EQ(receiver->weight_status().update_state, UpdateState::kReceiving);
  EXPECT_EQ(receiver->progress().weight_version, 2u);
  EXPECT_GT(receiver->progress().received_bytes, 0u);
  EXPECT_EQ(receiver->progress().total_bytes, v2.manifest->stream_bytes());
}

TEST_F(Receiver, TheDeadlineEndsATransferThatStandsStill) {
  start();
  transport.stop_at(3);
  const UpdateId id = begin(v2, 2000);
  ASSERT_TRUE(next<UpdateAccept>());
  receiver->handle(UpdateStart{id, {}, ""});
  const auto failed = next<UpdateFailed>();
  ASSERT_TRUE(failed);
  EXPECT_THAT(failed->reason, HasSubstr("deadline of 2000 ms passed while it was receiving"));
  transport.release();
  EXPECT_EQ(update_to(v2), cold_layout_digest(2));
}

TEST_F(Receiver, AFaultThatIsThrownFailsTheUpdateAndNotTheProcess) {
  start();
  for (const int part : {0, 3}) {
    transport.throw_at(part);
    EXPECT_THAT(failure_of_update(),
                HasSubstr("a fault of this worker: unspecified launch failure"));
    EXPECT_EQ(receiver->weight_status().serving_version, 1u);
    EXPECT_EQ(receiver->progress().weight_version, 0u);
  }
  transport.throw_at(-1);
  EXPECT_EQ(update_to(v2), cold_layout_digest(2));
}

TEST_F(Receiver, AFaultThatIsThrownWhileInstallingLeavesTheOldVersion) {
  options.install = [](const StagedWeightsPtr&) -> Result<InstallReport> {
    throw std::runtime_error("unspecified launch failure");
  };
  start();
  EXPECT_THAT(failure_of_update(/*is_committed=*/true), HasSubstr("unspecified launch failure"));
  EXPECT_EQ(receiver->weight_status().serving_version, 1u);
}

TEST_F(Receiver, DestroyingItEndsATransferThatStandsStill) {
  start();
  transport.stop_at(3);
  const UpdateId id = begin(v2);
  ASSERT_TRUE(next<UpdateAccept>());
  receiver->handle(UpdateStart{id, {}, ""});
  ASSERT_TRUE(wait_for([&] { return transport.stopped(); }));
  const auto started = Clock::now();
  receiver.reset();
  EXPECT_LT(Clock::now() - started, std::chrono::seconds(5));
}

TEST_F(Receiver, APinnedVersionDefersAndItsReleaseLetsTheUpdateGoOn) {
  options.pinned_sequences = [](uint64_t version) { return version == 1 ? 5u : 0u; };
  start();
  StagedWeightsPtr pinned = engine;
  update_to(v2);
  begin(arith(3, 3));
  const auto defer = next<UpdateDefer>();
  ASSERT_TRUE(defer);
  EXPECT_EQ(defer->pinned_sequences, 5u);
  EXPECT_EQ(layout_digest(pinned->layout, pinned->arena), cold_layout_digest(1));
  pinned.reset();
  EXPECT_TRUE(next<UpdateAccept>());
}

TEST_F(Receiver, PinsAreToldToLetGoAfterPinMax) {
  StagedWeightsPtr pinned;
  options.pin_fallback = [&](uint64_t version) {
    EXPECT_EQ(version, 1u);
    pinned.reset();
  };
  start();
  pinned = engine;
  update_to(v2);
  begin(arith(3, 3));
  EXPECT_TRUE(next<UpdateDefer>());
  EXPECT_TRUE(next<UpdateAccept>());
  EXPECT_EQ(receiver->stats().protocol.pin_fallbacks, 1u);
}

TEST_F(Receiver, AnEngineThatRefusesTheInstallGoesOnWithTheOldVersion) {
  start();
  install_error = "the engine is stopping";
  EXPECT_THAT(failure_of_update(/*is_committed=*/true), HasSubstr("the engine is stopping"));
  EXPECT_EQ(receiver->weight_status().serving_version, 1u);
  install_error.clear();
  EXPECT_EQ(update_to(arith(3, 3)), cold_layout_digest(3));
}

TEST_F(Receiver, RollbackFlipsToTheWholeOldArena) {
  start();
  update_to(v2);
  const UpdateId back{1, 1, ++attempt};
  receiver->handle(Rollback{back});
  const auto done = next<RollbackDone>();
  ASSERT_TRUE(done);
  EXPECT_TRUE(done->done) << done->reason;
  EXPECT_EQ(engine->weight_version, 1u);
  EXPECT_EQ(layout_digest(engine->layout, engine->arena), cold_layout_digest(1));
  EXPECT_EQ(receiver->weight_status().serving_version, 1u);
  EXPECT_EQ(receiver->weight_status().rollback_version, 2u);
}

TEST_F(Receiver, UnchangedWeightsUnderANewVersionRaiseTheAlarm) {
  std::string alarm;
  options.alarm = [&](const std::string& text) { alarm = text; };
  start();
  update_to(arith(1, 2));
  EXPECT_THAT(alarm, HasSubstr("weight version 2 has the digest of the serving version 1"));
  EXPECT_EQ(receiver->stats().protocol.same_digest_alarms, 1u);
}

TEST_F(Receiver, ANewTrainerEndsTheUpdateOfTheDeadOne) {
  start();
  transport.stop_at(3);
  const UpdateId id = begin(v2);
  ASSERT_TRUE(next<UpdateAccept>());
  receiver->handle(UpdateStart{id, {}, ""});
  ASSERT_TRUE(wait_for([&] { return transport.stopped(); }));
  receiver->set_trainer_epoch(2);
  const auto failed = next<UpdateFailed>();
  ASSERT_TRUE(failed);
  EXPECT_THAT(failed->reason, HasSubstr("trainer epoch 2 has replaced epoch 1"));
}

TEST_F(Receiver, AnArenaLimitIsAFailureWithBothNumbers) {
  options.max_arena_bytes = 100;
  receiver.emplace(options);
  receiver->start();
  begin(v2);
  const auto failed = next<UpdateFailed>();
  ASSERT_TRUE(failed);
  EXPECT_THAT(failed->reason, HasSubstr("limit 100"));
}

TEST_F(Receiver, AMissingCheckpointIsACleanErrorOfTheColdStart) {
  receiver.emplace(options);
  const auto loaded = receiver->load_initial(golden("no-such-model"), 1);
  EXPECT_FALSE(loaded.ok());
  EXPECT_THAT(loaded.status().message(), HasSubstr("no-such-model"));
}

}  // namespace
}  // namespace warproll
