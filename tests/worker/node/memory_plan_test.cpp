#include "worker/node/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/node/worker_memory.h"

namespace warproll {
namespace {

using ::testing::HasSubstr;
constexpr uint64_t kGiB = uint64_t{1} << 30;

// Of the 30B model in MXFP8 on a GPU of 139 GiB.
MemoryNeeds needs_of(uint64_t arena_gib) {
  MemoryNeeds needs;
  needs.free_bytes = 139 * kGiB;
  needs.arena_bytes = arena_gib * kGiB;
  needs.workspace_bytes = 2 * kGiB;
  needs.receive_bytes = 1 * kGiB;
  needs.kv_block_bytes = uint64_t{3} << 19;
  return needs;
}

TEST(MemoryPlan, TwoArenasWhereTheyFitAndTheKvCacheTakesTheRest) {
  const auto plan = plan_memory(needs_of(31));
  ASSERT_TRUE(plan.ok());
  EXPECT_FALSE(plan->host_staged);
  const uint64_t left = 139 * kGiB - (2 * 31 + 2 + 1 + 1) * kGiB;
  EXPECT_EQ(static_cast<uint64_t>(plan->num_kv_blocks), left / (uint64_t{3} << 19));
  EXPECT_LT(plan->left_bytes, uint64_t{3} << 19);
  EXPECT_THAT(plan->text, HasSubstr("standby weights"));
}

TEST(MemoryPlan, OneArenaAndTheHostWhereTwoDoNot) {
  const auto plan = plan_memory(needs_of(58));
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(plan->host_staged);
  EXPECT_THAT(plan->text, HasSubstr("in host memory"));
}

TEST(MemoryPlan, WhatIsAskedForIsGivenOrRefusedWithTheSum) {
  MemoryNeeds needs = needs_of(31);
  needs.wanted_kv_bytes = 10 * kGiB;
  const auto plan = plan_memory(needs);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(static_cast<uint64_t>(plan->num_kv_blocks), 10 * kGiB / needs.kv_block_bytes);
  needs.swap = "two_arenas";
  needs.wanted_kv_bytes = 80 * kGiB;
  const auto refused = plan_memory(needs);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("weights.swap: host_staged"));
  EXPECT_THAT(refused.status().message(), HasSubstr("81920.0 MiB"));
  needs.swap = "auto";
  const auto staged = plan_memory(needs);
  ASSERT_TRUE(staged.ok());
  EXPECT_TRUE(staged->host_staged);
}

TEST(MemoryPlan, WhatIsOnItsWayToTheHostIsCountedWhereTheStandbyIsThere) {
  MemoryNeeds needs = needs_of(31);
  needs.staging_bytes = 2 * kGiB;
  const auto two = plan_memory(needs);
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(static_cast<uint64_t>(two->num_kv_blocks),
            (139 - (2 * 31 + 2 + 1 + 1)) * kGiB / needs.kv_block_bytes);
  needs.swap = "host_staged";
  const auto staged = plan_memory(needs);
  ASSERT_TRUE(staged.ok());
  EXPECT_EQ(static_cast<uint64_t>(staged->num_kv_blocks),
            (139 - (31 + 2 + 1 + 1 + 2)) * kGiB / needs.kv_block_bytes);
  EXPECT_THAT(staged->text, HasSubstr("on its way to the host"));
}

TEST(MemoryPlan, AModelThatDoesNotFitIsRefused) {
  EXPECT_EQ(plan_memory(needs_of(140)).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(plan_memory(needs_of(136)).status().code(), StatusCode::kResourceExhausted);
}

TEST(DeviceOptions, SpareAsManySmsAsABroadcastTakesUnlessSaidOtherwise) {
  WorkerConfig config;
  config.weights.nccl_max_ctas = 3;
  config.weights.transports = {"tcp"};
  EXPECT_EQ(device_options(config).spare_sms, 0);
  config.weights.transports = {"tcp", "nccl"};
  EXPECT_EQ(device_options(config).spare_sms, 3);
  config.engine.spare_sms = 0;
  EXPECT_EQ(device_options(config).spare_sms, 0);
}

}  // namespace
}  // namespace warproll
