// Trainers and workers killed in every phase of an update, and everything at once, in simulated
// time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/weights_sync/fleet_simulation.h"

namespace warproll {
namespace {

using testing::IsEmpty;

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
