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

BroadcasterOptions quick_options() {
  BroadcasterOptions options;
  options.deadline_ms = 3'000;
  options.commit_grace_ms = 500;
  options.accept_ms = 500;
  options.restate_ms = 100;
  options.retry_ms = 50;
  options.liveness_ms = 1'000;
  options.straggler_ms = 300;
  return options;
}

int count_events(const FleetSimulation& fleet, BroadcastEventKind kind) {
  return static_cast<int>(
      std::count_if(fleet.events().begin(), fleet.events().end(),
                    [kind](const BroadcastEvent& event) { return event.kind == kind; }));
}

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

const UpdatePhase kEveryPhase[] = {UpdatePhase::kIdle,      UpdatePhase::kChecking,
                                   UpdatePhase::kDeferred,  UpdatePhase::kAccepted,
                                   UpdatePhase::kReceiving, UpdatePhase::kVerifying,
                                   UpdatePhase::kReady,     UpdatePhase::kInstalling,
                                   UpdatePhase::kCommitted, UpdatePhase::kAborted};

class InEveryPhase : public testing::TestWithParam<UpdatePhase> {
 protected:
  // Steers worker 0 into the phase while an update to version 2 is offered.
  bool reach(FleetSimulation& fleet) {
    const UpdatePhase wanted = GetParam();
    fleet.run_for(200);
    fleet.faults.max_work_ms = 200;
    if (wanted == UpdatePhase::kDeferred) fleet.faults.pinned = 1;
    if (wanted == UpdatePhase::kAborted) fleet.faults.receive_fails = 1;
    if (wanted != UpdatePhase::kIdle) fleet.begin_update(2);
    const bool reached = fleet.run_until([&] { return fleet.worker(0).phase() == wanted; }, 5'000);
    fleet.faults = FaultRates{};
    return reached;
  }
};

TEST_P(InEveryPhase, AKilledTrainerLeavesAWholeVersionAndTheNextTrainerGoesOn) {
  FleetSimulation fleet(20, 3, quick_options());
  ASSERT_TRUE(reach(fleet));
  fleet.kill_trainer();
  // Past every deadline without a trainer: each worker serves something whole, and waits no more.
  fleet.run_for(5'000);
  for (int i = 0; i < 3; ++i) {
    const UpdatePhase phase = fleet.worker(i).phase();
    EXPECT_TRUE(phase == UpdatePhase::kIdle || phase == UpdatePhase::kCommitted ||
                phase == UpdatePhase::kAborted)
        << "worker " << i << " is " << to_string(phase);
  }
  fleet.start_trainer();
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(fleet.last_committed()); }, 5'000));
  fleet.begin_update(3);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(3); }, 5'000));
  EXPECT_THAT(fleet.violations(), IsEmpty());
}

TEST_P(InEveryPhase, ATrainerRestartedAtOnceSupersedesItsPredecessor) {
  FleetSimulation fleet(21, 3, quick_options());
  ASSERT_TRUE(reach(fleet));
  fleet.kill_trainer();
  fleet.start_trainer();
  fleet.begin_update(3);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(3); }, 5'000));
  EXPECT_THAT(fleet.violations(), IsEmpty());
}

TEST_P(InEveryPhase, AKilledWorkerDoesNotStopTheOthersAndCatchesUp) {
  BroadcasterOptions options = quick_options();
  options.rule = CommitRule::kQuorum;
  options.quorum = 1;
  FleetSimulation fleet(22, 3, options);
  ASSERT_TRUE(reach(fleet));
  fleet.kill_worker(0);
  if (!fleet.trainer().has_pending() && fleet.last_committed() < 2) fleet.begin_update(2);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.trainer().converged(); }, 6'000));
  EXPECT_EQ(fleet.worker(1).serving().weight_version, fleet.last_committed());
  fleet.start_worker(0, 1);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(fleet.last_committed()); }, 6'000));
  fleet.begin_update(3);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(3); }, 6'000));
  EXPECT_THAT(fleet.violations(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Phases, InEveryPhase, testing::ValuesIn(kEveryPhase),
                         [](const auto& phase) { return std::string(to_string(phase.param)); });

// Everything at once: a lossy network, failing work, pinned arenas, killed trainers and workers,
// aborts and rollbacks; then peace, in which the fleet has to converge.
struct ChaosCounts {
  uint64_t committed = 0, aborted = 0, rolled_back = 0, deferred = 0, superseded = 0, failed = 0;
};
void run_chaos(uint32_t seed, ChaosCounts& counts) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  BroadcasterOptions options = quick_options();
  options.rule = seed % 2 == 0 ? CommitRule::kAll : CommitRule::kQuorum;
  options.quorum = 2;
  FleetSimulation fleet(seed, 4, options);
  fleet.faults = {.drop = 0.1,
                  .duplicate = 0.1,
                  .receive_fails = 0.1,
                  .verify_fails = 0.05,
                  .install_fails = 0.03,
                  .reject = 0.02,
                  .pinned = 0.3,
                  .max_delay_ms = 150,
                  .max_work_ms = 150};
  uint64_t next_version = 2;
  for (const int64_t end = fleet.now_ms() + 20'000; fleet.now_ms() < end;) {
    fleet.step();
    if (fleet.has_trainer()) {
      if (fleet.chance(0.01)) fleet.begin_update(next_version++);
      if (fleet.chance(0.001)) fleet.trainer().abort_update("chaos", fleet.now_ms());
      if (fleet.chance(0.002)) {
        (void)fleet.trainer().rollback(fleet.trainer().rollback_version(), fleet.now_ms());
      }
      if (fleet.chance(0.002)) fleet.kill_trainer();
    } else if (fleet.chance(0.02)) {
      fleet.start_trainer();
    }
    for (int i = 0; i < fleet.num_workers(); ++i) {
      if (!fleet.worker_is_up(i)) {
        if (fleet.chance(0.02)) fleet.start_worker(i, fleet.last_committed());
      } else if (fleet.chance(0.001)) {
        fleet.kill_worker(i);
      }
    }
  }
  fleet.faults = FaultRates{};
  if (!fleet.has_trainer()) fleet.start_trainer();
  for (int i = 0; i < fleet.num_workers(); ++i) {
    if (!fleet.worker_is_up(i)) fleet.start_worker(i, 1);
  }
  const bool converged = fleet.run_until(
      [&] { return fleet.trainer().converged() && fleet.all_serve(fleet.last_committed()); },
      10'000);
  EXPECT_TRUE(converged) << "target " << fleet.last_committed();
  fleet.begin_update(next_version);
  EXPECT_TRUE(fleet.run_until([&] { return fleet.all_serve(next_version); }, 5'000));
  EXPECT_THAT(fleet.violations(), IsEmpty());
  counts.committed += count_events(fleet, BroadcastEventKind::kCommitted);
  counts.aborted += count_events(fleet, BroadcastEventKind::kAborted);
  for (int i = 0; i < fleet.num_workers(); ++i) {
    const UpdateStateMachineStats& stats = fleet.worker(i).stats();
    counts.rolled_back += stats.rolled_back;
    counts.deferred += stats.deferred;
    counts.superseded += stats.superseded;
    counts.failed += stats.failed;
  }
}

TEST(FleetUpdate, RandomFaultsNeverTearAVersionAndTheFleetConvergesAfterThem) {
  ChaosCounts counts;
  for (uint32_t seed = 1000; seed < 1200 && !testing::Test::HasFailure(); ++seed) {
    run_chaos(seed, counts);
  }
  // The faults did what they were meant to.
  EXPECT_GT(counts.committed, 1000u);
  EXPECT_GT(counts.aborted, 500u);
  EXPECT_GT(counts.rolled_back, 20u);
  EXPECT_GT(counts.deferred, 500u);
  EXPECT_GT(counts.superseded, 100u);
  EXPECT_GT(counts.failed, 1000u);
}

}  // namespace
}  // namespace warproll
