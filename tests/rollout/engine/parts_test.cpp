// The engine's small parts: blocks, step gaps, statistics buckets, score_tokens' refusals.
#include <gtest/gtest.h>

#include <set>

#include "rollout/engine/block_manager.h"
#include "rollout/engine/engine_stats.h"
#include "rollout/engine/score.h"
#include "rollout/engine/step_gaps.h"
#include "tests/rollout/engine/fake_model.h"

namespace warproll {
namespace {

TEST(BlockManager, GivesEachBlockOnceUntilItsLastOwnerReleasesIt) {
  BlockManager blocks(3);
  std::set<int32_t> taken;
  for (int i = 0; i < 3; ++i) taken.insert(*blocks.allocate());
  EXPECT_EQ(taken, (std::set<int32_t>{0, 1, 2}));
  EXPECT_FALSE(blocks.allocate().has_value());
  blocks.add_owner(1);
  blocks.release(1);
  EXPECT_EQ(blocks.num_owners(1), 1);
  EXPECT_EQ(blocks.num_free(), 0);
  blocks.release(1);
  EXPECT_EQ(blocks.num_free(), 1);
  EXPECT_EQ(blocks.allocate(), 1);
}

TEST(BlockManager, MisuseIsABrokenInvariant) {
  BlockManager blocks(1);
  EXPECT_THROW(blocks.release(0), std::logic_error);
  EXPECT_THROW(blocks.add_owner(0), std::logic_error);
}

TEST(StepGaps, TellTheMedianStepAndTheGapBetweenTheEndsOfTwoSteps) {
  StepGaps gaps;
  StepGaps::TimePoint now{};
  const auto step = [&](int wait_us, int duration_us) {
    const auto start = now + std::chrono::microseconds(wait_us);
    now = start + std::chrono::microseconds(duration_us);
    return gaps.step_ended(start, now);
  };
  EXPECT_EQ(gaps.median_step_us(), 0u);
  EXPECT_FALSE(step(0, 100).has_value());
  EXPECT_EQ(step(5, 110), 115u);
  EXPECT_EQ(step(40, 500), 540u);
  EXPECT_EQ(gaps.median_step_us(), 110u);
  gaps.idle();
  EXPECT_FALSE(step(1000000, 100).has_value()) << "time without work is nobody's stall";
}

TEST(EngineStatsBuckets, AreByPowersOfTwoMicroseconds) {
  EngineStats stats;
  for (const uint64_t us : {0u, 1u, 2u, 3u, 4u, 1000u}) stats.count_step_us(us);
  stats.count_step_us(uint64_t{1} << 40);
  EXPECT_EQ(stats.step_time_counts[0], 1u);  // 0
  EXPECT_EQ(stats.step_time_counts[1], 1u);  // 1
  EXPECT_EQ(stats.step_time_counts[2], 2u);  // 2, 3
  EXPECT_EQ(stats.step_time_counts[3], 1u);  // 4
  EXPECT_EQ(stats.step_time_counts[10], 1u);
  EXPECT_EQ(stats.step_time_counts[EngineStats::kStepTimeBuckets - 1], 1u);
}

TEST(ScoreTokens, RefusesBadTokensWithTheValues) {
  const WeightSetPtr weights = fake_weights(1);
  const auto message = [&](const std::vector<int32_t>& tokens, int32_t first) {
    return score_tokens(*weights, cpu_runner(ActivationDtype::kF32), tokens, first, {})
        .status()
        .message();
  };
  EXPECT_EQ(message({}, 1), "score: 0 tokens, wanted 1..256");
  EXPECT_EQ(message({1, 2}, 0), "score: the first token to score is 0, wanted 1..2");
  EXPECT_EQ(message({1, 40}, 1), "score: token 1 is 40, wanted [0, 40)");
}

}  // namespace
}  // namespace warproll
