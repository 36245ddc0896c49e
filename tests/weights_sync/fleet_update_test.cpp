// Broadcaster and UpdateStateMachines together, in simulated time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/weights_sync/fleet_simulation.h"

namespace warproll {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(FleetUpdate, AllWorkersServeTheNewVersionAndReportTheFlip) {
  FleetSimulation fleet(1, 3, quick_options());
  fleet.run_for(200);
  fleet.begin_update(2);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.trainer().converged(); }, 3'000));
  EXPECT_TRUE(fleet.all_serve(2));
  const UpdateReport report = fleet.trainer().report();
  EXPECT_TRUE(report.committed);
  EXPECT_EQ(report.weight_version, 2u);
  ASSERT_EQ(report.workers.size(), 3u);
  for (const WorkerUpdateReport& worker : report.workers) {
    EXPECT_TRUE(worker.committed);
    EXPECT_EQ(worker.attempts, 1u);
    EXPECT_EQ(worker.received_bytes, 1000u);
    EXPECT_EQ(worker.in_flight_sequences, 4u);
  }
  EXPECT_THAT(fleet.violations(), IsEmpty());
}

TEST(FleetUpdate, NobodyMovesAByteBeforeEverybodyHasAnswered) {
  FleetSimulation fleet(2, 3, quick_options());
  fleet.run_for(200);
  fleet.filter = [](int worker, const Message& message, bool to_worker) {
    return worker != 2 || to_worker || !std::holds_alternative<UpdateAccept>(message);
  };
  fleet.begin_update(2);
  for (int i = 0; i < 60; ++i) {  // 300 ms, accept_ms is 500
    fleet.step();
    EXPECT_NE(fleet.worker(0).phase(), UpdatePhase::kReceiving);
  }
  fleet.filter = nullptr;
  ASSERT_TRUE(fleet.run_until([&] { return fleet.trainer().converged(); }, 3'000));
  EXPECT_TRUE(fleet.all_serve(2));
}

TEST(FleetUpdate, ARejectionAbortsWhenAllMustCommitAndSaysWhy) {
  FleetSimulation fleet(3, 2, quick_options());
  fleet.run_for(200);
  fleet.faults.reject = 1;
  fleet.begin_update(2);
  ASSERT_TRUE(fleet.run_until([&] { return !fleet.trainer().has_pending(); }, 3'000));
  EXPECT_FALSE(fleet.trainer().report().committed);
  EXPECT_THAT(fleet.trainer().report().reason, HasSubstr("tensor 'x' is missing"));
  fleet.run_for(500);
  EXPECT_TRUE(fleet.all_serve(1));
  EXPECT_THAT(fleet.violations(), IsEmpty());
}

TEST(FleetUpdate, AQuorumDropsASilentWorkerAndCatchesItUpLater) {
  BroadcasterOptions options = quick_options();
  options.rule = CommitRule::kQuorum;
  options.quorum = 2;
  FleetSimulation fleet(4, 3, options);
  fleet.run_for(200);
  // Stopped like SIGSTOP: nothing of it arrives.
  fleet.filter = [](int worker, const Message&, bool) { return worker != 1; };
  fleet.begin_update(2);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.last_committed() == 2; }, 3'000));
  ASSERT_TRUE(fleet.run_until([&] { return fleet.trainer().converged(); }, 3'000));
  EXPECT_EQ(fleet.worker(1).serving().weight_version, 1u);
  fleet.filter = nullptr;
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(2); }, 3'000));
  EXPECT_THAT(fleet.violations(), IsEmpty());
}

TEST(FleetUpdate, AStoppedWorkerDoesNotHoldUpTheOthersForEver) {
  FleetSimulation fleet(5, 3, quick_options());
  fleet.run_for(200);
  fleet.kill_worker(2);
  fleet.begin_update(2);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.trainer().converged(); }, 2'900));
  EXPECT_EQ(fleet.worker(0).serving().weight_version, 2u);
  EXPECT_EQ(fleet.worker(1).serving().weight_version, 2u);
}

TEST(FleetUpdate, ALateJoinerAndARestartedWorkerGetTheCurrentVersionAtOnce) {
  FleetSimulation fleet(6, 3, quick_options());
  fleet.kill_worker(2);
  fleet.begin_update(2);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.last_committed() == 2; }, 5'000));
  fleet.start_worker(2, 1);
  fleet.kill_worker(0);
  fleet.start_worker(0, 1);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(2); }, 1'000));
  EXPECT_THAT(fleet.violations(), IsEmpty());
}

TEST(FleetUpdate, AFailedReceiveIsRetriedAndThenGivenUp) {
  FleetSimulation fleet(7, 1, quick_options());
  fleet.run_for(200);
  fleet.faults.receive_fails = 1;
  fleet.begin_update(2);
  ASSERT_TRUE(fleet.run_until([&] { return !fleet.trainer().has_pending(); }, 4'000));
  EXPECT_EQ(fleet.trainer().report().workers.at(0).attempts, 3u);
  EXPECT_THAT(fleet.trainer().report().reason, HasSubstr("bucket 3 is damaged"));
  fleet.faults.receive_fails = 0;
  fleet.begin_update(3);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(3); }, 2'000));
  EXPECT_THAT(fleet.violations(), IsEmpty());
}

TEST(FleetUpdate, PinnedSequencesDeferAWorkerUntilTheirFallback) {
  FleetSimulation fleet(8, 2, quick_options());
  fleet.run_for(200);
  fleet.faults.pinned = 1;
  fleet.begin_update(2);
  fleet.run_for(1'200);  // pin_max_ms is 1000
  EXPECT_EQ(fleet.worker(0).phase(), UpdatePhase::kDeferred);
  EXPECT_EQ(fleet.worker(0).stats().pin_fallbacks, 1u);
  EXPECT_GT(count_events(fleet, BroadcastEventKind::kWorkerDeferred), 0);
  fleet.faults.pinned = 0;
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(2); }, 2'000));
}

TEST(FleetUpdate, RollbackFlipsBackWithoutATransfer) {
  FleetSimulation fleet(9, 3, quick_options());
  fleet.run_for(200);
  fleet.begin_update(2);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.trainer().converged(); }, 3'000));
  ASSERT_TRUE(fleet.trainer().rollback(1, fleet.now_ms()).ok());
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(1); }, 2'000));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(fleet.worker(i).stats().begun, 1u);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.trainer().converged(); }, 1'000));
  fleet.begin_update(3);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(3); }, 3'000));
  EXPECT_THAT(fleet.violations(), IsEmpty());
}

TEST(FleetUpdate, RollbackTransfersWhereTheOldVersionIsGone) {
  FleetSimulation fleet(10, 2, quick_options());
  fleet.run_for(200);
  fleet.begin_update(2);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.trainer().converged(); }, 3'000));
  fleet.kill_worker(1);
  fleet.start_worker(1, 2);
  ASSERT_TRUE(fleet.trainer().rollback(1, fleet.now_ms()).ok());
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(1); }, 3'000));
  EXPECT_EQ(fleet.worker(0).stats().rolled_back, 1u);
  EXPECT_EQ(fleet.worker(1).stats().committed, 1u);
}

TEST(FleetUpdate, RollbackToAnythingButTheVersionBeforeIsRefused) {
  FleetSimulation fleet(11, 1, quick_options());
  fleet.run_for(200);
  const Status status = fleet.trainer().rollback(7, fleet.now_ms());
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("rollback to version 7"));
}

TEST(FleetUpdate, AnAbortByTheTrainerLeavesTheOldVersion) {
  FleetSimulation fleet(12, 2, quick_options());
  fleet.run_for(200);
  fleet.faults.max_work_ms = 500;
  fleet.begin_update(2);
  ASSERT_TRUE(
      fleet.run_until([&] { return fleet.worker(0).phase() == UpdatePhase::kReceiving; }, 3'000));
  fleet.trainer().abort_update("the user asked for it", fleet.now_ms());
  ASSERT_TRUE(fleet.run_until(
      [&] {
        return fleet.worker(0).phase() == UpdatePhase::kAborted &&
               fleet.worker(1).phase() == UpdatePhase::kAborted;
      },
      1'000));
  EXPECT_TRUE(fleet.all_serve(1));
  EXPECT_THAT(fleet.violations(), IsEmpty());
}

TEST(FleetUpdate, AVersionThatEverybodyServesAlreadyCommitsWithoutATransfer) {
  FleetSimulation fleet(13, 2, quick_options());
  fleet.run_for(200);
  fleet.begin_update(1);
  EXPECT_TRUE(fleet.trainer().converged());
  EXPECT_EQ(fleet.worker(0).stats().begun, 0u);
}

TEST(FleetUpdate, AnOfferWithoutVersionManifestOrRouteIsRefused) {
  Broadcaster trainer(quick_options());
  UpdateOffer offer = offer_of_version(0);
  EXPECT_EQ(trainer.begin_update(offer, 0).code(), StatusCode::kInvalidArgument);
  offer = offer_of_version(2);
  offer.routes.clear();
  EXPECT_EQ(trainer.begin_update(offer, 0).code(), StatusCode::kInvalidArgument);
  offer = offer_of_version(2);
  offer.manifest.clear();
  EXPECT_EQ(trainer.begin_update(offer, 0).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace warproll
