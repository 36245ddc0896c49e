// Nothing lost, nothing twice (S1-S13), whatever dies and whatever the network does.
#include <gtest/gtest.h>

#include "tests/rollout/stream/simulation.h"

namespace warproll {
namespace {

using namespace stream_testing;

// A shard of seeds, so that test runners can spread them.
class ChaosTest : public ::testing::TestWithParam<int> {};

constexpr int kShards = 8;
constexpr int kSeedsPerShard = 15;

TEST_P(ChaosTest, EverySampleIsTakenExactlyOnce) {
  for (int i = 0; i < kSeedsPerShard; ++i) {
    const auto seed = static_cast<uint64_t>(GetParam() * 1000 + i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Faults faults;
    faults.duplicate_sample = 0.1;
    Simulation simulation(seed, 2, faults);
    simulation.add_tasks(12);
    simulation.run(60);
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_TRUE(simulation.run_to_completion());
    simulation.check();
    if (HasFailure()) return;
  }
}

TEST_P(ChaosTest, EverySampleIsTakenExactlyOnceAcrossRollbacks) {
  for (int i = 0; i < 3; ++i) {
    const auto seed = static_cast<uint64_t>(500'000 + GetParam() * 1000 + i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation simulation(seed, 2, Faults{});
    simulation.add_tasks(8);
    simulation.run(15);
    TrainerStream& at_mark = simulation.trainer();
    ASSERT_TRUE(at_mark.receiver().flush().ok());
    ASSERT_TRUE(at_mark.receiver().mark("checkpoint").ok());
    simulation.run(25);
    ASSERT_TRUE(simulation.trainer().rollback("checkpoint").ok());
    simulation.readd_tasks();
    simulation.run(25);
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_TRUE(simulation.run_to_completion());
    simulation.check();
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Shards, ChaosTest, ::testing::Range(0, kShards));

}  // namespace
}  // namespace warproll
