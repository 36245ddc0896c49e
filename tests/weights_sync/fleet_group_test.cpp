// Workers that receive as one group (GroupTransfers), in simulated time: one that dies ends it for
// all, and they come together again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/weights_sync/fleet_simulation.h"

namespace warproll {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class FleetGroup : public testing::TestWithParam<bool> {
 protected:
  explicit FleetGroup(BroadcasterOptions options = quick_options()) : fleet(7, 4, options) {
    groups.death_is_noticed = GetParam();
    fleet.use_groups(&groups);
    fleet.run_for(200);
  }

  // Worker 0 is in the middle of a transfer to version 2.
  bool reach_the_transfer() {
    groups.transfer_ms = 100;
    fleet.begin_update(2);
    const bool there =
        fleet.run_until([&] { return fleet.worker(0).phase() == UpdatePhase::kReceiving; }, 2'000);
    fleet.run_for(50);
    return there;
  }
  std::vector<size_t> sizes() const {
    std::vector<size_t> sizes;
    for (const auto& group : groups.started()) sizes.push_back(group.participants.size());
    return sizes;
  }

  FakeGroups groups;
  FleetSimulation fleet;
};

BroadcasterOptions quorum_of_one() {
  BroadcasterOptions options = quick_options();
  options.rule = CommitRule::kQuorum;
  options.straggler_ms = 2'500;
  return options;
}

class FleetGroupWithQuorum : public FleetGroup {
 protected:
  FleetGroupWithQuorum() : FleetGroup(quorum_of_one()) {}
};

TEST_P(FleetGroup, AllWhoAcceptedFormOneGroup) {
  fleet.begin_update(2);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(2); }, 3'000));
  EXPECT_THAT(sizes(), testing::ElementsAre(4));
  EXPECT_EQ(groups.num_running(), 0u);
  EXPECT_THAT(fleet.violations(), IsEmpty());
}

TEST_P(FleetGroupWithQuorum, AfterADeathTheRestAreRetriedTogetherAndTheDeadOneCatchesUpAlone) {
  ASSERT_TRUE(reach_the_transfer());
  fleet.kill_worker(3);
  ASSERT_TRUE(fleet.run_until(
      [&] {
        return fleet.worker(0).serving().weight_version == 2 &&
               fleet.worker(1).serving().weight_version == 2 &&
               fleet.worker(2).serving().weight_version == 2;
      },
      3'000));
  EXPECT_THAT(sizes(), testing::ElementsAre(4, 3));
  fleet.start_worker(3, 1);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(2); }, 3'000));
  EXPECT_THAT(sizes(), testing::ElementsAre(4, 3, 1));
  EXPECT_EQ(groups.num_running(), 0u);
  EXPECT_THAT(fleet.violations(), IsEmpty());
}

TEST_P(FleetGroupWithQuorum, AWorkerRestartedWithinTheTransferIsInTheNextGroup) {
  ASSERT_TRUE(reach_the_transfer());
  fleet.kill_worker(1);
  fleet.start_worker(1, 1);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(2); }, 5'000));
  EXPECT_THAT(sizes(), testing::ElementsAre(4, 4));
  EXPECT_THAT(fleet.violations(), IsEmpty());
}

TEST_P(FleetGroupWithQuorum, OneThatBreaksEveryGroupIsSetApartAndTheOthersGetTheVersion) {
  groups.culprits = {to_hex(Digest(fleet.trainer().workers()[2].producer_id))};
  fleet.begin_update(2);
  ASSERT_TRUE(fleet.run_until([&] { return !fleet.trainer().has_pending(); }, 5'000));
  EXPECT_TRUE(fleet.trainer().report().committed);
  // Twice all of them, then each alone.
  const std::vector<size_t> all = sizes();
  ASSERT_GE(all.size(), 6u);
  EXPECT_THAT(std::vector<size_t>(all.begin(), all.begin() + 6),
              testing::ElementsAre(4, 4, 1, 1, 1, 1));
  fleet.run_for(200);
  for (const int good : {0, 1, 3}) EXPECT_EQ(fleet.worker(good).serving().weight_version, 2u);
  EXPECT_EQ(fleet.worker(2).serving().weight_version, 1u);
  groups.culprits.clear();
  EXPECT_TRUE(fleet.run_until([&] { return fleet.all_serve(2); }, 5'000));
  EXPECT_EQ(groups.num_running(), 0u);
}

TEST_P(FleetGroup, ATrainerThatCannotStartTheGroupSaysSo) {
  groups.cannot_start = true;
  fleet.begin_update(2);
  ASSERT_TRUE(fleet.run_until([&] { return !fleet.trainer().has_pending(); }, 5'000));
  EXPECT_THAT(fleet.trainer().report().reason, HasSubstr("the trainer cannot start it: no device"));
  groups.cannot_start = false;
  fleet.begin_update(3);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(3); }, 3'000));
  EXPECT_THAT(fleet.violations(), IsEmpty());
}

TEST_P(FleetGroup, AnAbortedUpdateStopsItsGroup) {
  ASSERT_TRUE(reach_the_transfer());
  EXPECT_EQ(groups.num_running(), 1u);
  fleet.trainer().abort_update("not wanted", fleet.now_ms());
  fleet.run_for(10);
  EXPECT_EQ(groups.num_running(), 0u);
  fleet.begin_update(3);
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(3); }, 3'000));
  EXPECT_THAT(fleet.violations(), IsEmpty());
}

TEST_P(FleetGroup, AFailureAfterTheTransferIsOfThatWorkerAlone) {
  fleet.begin_update(2);
  ASSERT_TRUE(fleet.run_until([&] { return groups.num_running() == 1; }, 2'000));
  fleet.faults.verify_fails = 0.5;
  ASSERT_TRUE(fleet.run_until(
      [&] { return count_events(fleet, BroadcastEventKind::kWorkerFailed) > 0; }, 2'000));
  fleet.faults.verify_fails = 0;
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(2); }, 3'000));
  EXPECT_LT(sizes()[1], 4u);  // those that failed, and not the others
  EXPECT_THAT(fleet.violations(), IsEmpty());
}

TEST_P(FleetGroup, AWorkerThatTheRouteDoesNotSuitTakesTheNextOrIsToldBothValues) {
  UpdateOffer offer = offer_of_version(2);
  TransportRoute nccl{"nccl", "", ""};
  nccl.group = groups.transfers();
  nccl.suits = [](const HelloEnvironment&) {
    return failed_precondition("NCCL is 2.27.3, the trainer has 2.28.9");
  };
  offer.routes = {nccl, offer.routes.front()};
  ASSERT_TRUE(fleet.trainer().begin_update(offer, fleet.now_ms()).ok());
  ASSERT_TRUE(fleet.run_until([&] { return fleet.all_serve(2); }, 3'000));
  EXPECT_THAT(groups.started(), IsEmpty());  // all by tcp
  offer = offer_of_version(3);
  offer.routes = {nccl};
  ASSERT_TRUE(fleet.trainer().begin_update(offer, fleet.now_ms()).ok());
  ASSERT_TRUE(fleet.run_until([&] { return !fleet.trainer().has_pending(); }, 3'000));
  EXPECT_THAT(fleet.trainer().report().reason,
              HasSubstr("cannot use nccl: NCCL is 2.27.3, the trainer has 2.28.9"));
}

INSTANTIATE_TEST_SUITE_P(Deaths, FleetGroup, testing::Bool(), [](const auto& noticed) {
  return noticed.param ? "Noticed" : "InSilence";
});
INSTANTIATE_TEST_SUITE_P(Deaths, FleetGroupWithQuorum, testing::Bool(), [](const auto& noticed) {
  return noticed.param ? "Noticed" : "InSilence";
});

// Losses, doubles, deaths of trainers and workers, all at once: it still converges.
TEST(FleetGroupChaos, ConvergesAfterEverything) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    BroadcasterOptions options = quorum_of_one();
    options.straggler_ms = 300;
    FleetSimulation fleet(seed, 4, options);
    FakeGroups groups;
    groups.death_is_noticed = seed % 2 == 0;
    fleet.use_groups(&groups);
    fleet.run_for(100);
    fleet.faults = {.drop = 0.05, .duplicate = 0.05, .verify_fails = 0.05, .max_delay_ms = 30};
    uint64_t version = 1;
    for (int round = 0; round < 40; ++round) {
      if (fleet.has_trainer() && fleet.chance(0.3)) fleet.begin_update(++version);
      const int victim = round % 4;
      if (fleet.chance(0.2) && fleet.worker_is_up(victim)) fleet.kill_worker(victim);
      if (fleet.chance(0.5) && !fleet.worker_is_up(victim)) fleet.start_worker(victim, 1);
      if (fleet.chance(0.1) && fleet.has_trainer()) fleet.kill_trainer();
      if (fleet.chance(0.5) && !fleet.has_trainer()) fleet.start_trainer();
      fleet.run_for(100);
    }
    fleet.faults = FaultRates{};
    for (int i = 0; i < 4; ++i) {
      if (!fleet.worker_is_up(i)) fleet.start_worker(i, 1);
    }
    if (!fleet.has_trainer()) fleet.start_trainer();
    ASSERT_TRUE(fleet.run_until(
        [&] { return !fleet.trainer().has_pending() && fleet.all_serve(fleet.last_committed()); },
        20'000));
    fleet.run_for(200);
    EXPECT_EQ(groups.num_running(), 0u);
    EXPECT_THAT(fleet.violations(), IsEmpty());
  }
}

}  // namespace
}  // namespace warproll
