#include "weights_sync/weight_arenas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

namespace warproll {
namespace {

using testing::HasSubstr;

constexpr uint64_t kBytes = 4096;

StagedWeights version(uint64_t weight_version, uint64_t bytes = kBytes) {
  StagedWeights weights;
  weights.weight_version = weight_version;
  weights.layout.total_bytes = bytes;
  return weights;
}

// Writes a version: every byte is its number.
StagedWeightsPtr write_version(WeightArenas& arenas, uint64_t number, uint64_t bytes = kBytes) {
  auto standby = arenas.acquire_standby(bytes);
  if (!standby.ok()) return nullptr;
  auto memory = standby->overwrite(bytes);
  std::fill(memory->begin(), memory->end(), static_cast<std::byte>(number));
  return std::move(*standby).publish(version(number, bytes));
}
void serve_version(WeightArenas& arenas, uint64_t number) {
  arenas.set_serving(write_version(arenas, number));
}
bool holds(const StagedWeightsPtr& weights, uint64_t number) {
  return std::all_of(weights->arena.begin(), weights->arena.end(),
                     [number](std::byte byte) { return byte == static_cast<std::byte>(number); });
}

TEST(WeightArenas, ANewVersionGoesToTheOtherArenaAndTheOldOneStaysWhole) {
  WeightArenas arenas;
  serve_version(arenas, 1);
  const std::byte* first = arenas.serving()->arena.data();
  serve_version(arenas, 2);
  EXPECT_NE(arenas.serving()->arena.data(), first);
  EXPECT_TRUE(holds(arenas.serving(), 2));
  ASSERT_NE(arenas.previous(), nullptr);
  EXPECT_TRUE(holds(arenas.previous(), 1));
}

TEST(WeightArenas, ThirtyVersionsUseTwoArenas) {
  WeightArenas arenas;
  for (uint64_t number = 1; number <= 30; ++number) {
    serve_version(arenas, number);
    EXPECT_TRUE(holds(arenas.serving(), number));
  }
  EXPECT_EQ(arenas.allocated_bytes(), 2 * kBytes);
}

TEST(WeightArenas, APinnedVersionHoldsTheStandbyUntilItsLastRelease) {
  WeightArenas arenas;
  serve_version(arenas, 1);
  StagedWeightsPtr pinned = arenas.serving();
  StagedWeightsPtr pinned_too = pinned;
  serve_version(arenas, 2);
  const auto refused = arenas.acquire_standby(kBytes);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(refused.status().message(), HasSubstr("version 1"));
  EXPECT_EQ(arenas.standby_holders().weight_version, 1u);
  EXPECT_EQ(arenas.standby_holders().num_holders, 2u);
  pinned.reset();
  EXPECT_FALSE(arenas.acquire_standby(kBytes).ok());
  EXPECT_TRUE(holds(pinned_too, 1));
  pinned_too.reset();
  EXPECT_TRUE(arenas.acquire_standby(kBytes).ok());
  EXPECT_EQ(arenas.standby_holders().num_holders, 0u);
}

TEST(WeightArenas, TheServingVersionIsNeverOverwrittenHoweverManyHoldIt) {
  WeightArenas arenas;
  serve_version(arenas, 1);
  const StagedWeightsPtr reader = arenas.serving();
  serve_version(arenas, 2);
  EXPECT_TRUE(holds(reader, 1));
}

TEST(WeightArenas, AStandbyGivenBackBeforeOverwritingKeepsThePreviousVersion) {
  WeightArenas arenas;
  serve_version(arenas, 1);
  serve_version(arenas, 2);
  { const auto standby = arenas.acquire_standby(kBytes); }
  ASSERT_NE(arenas.previous(), nullptr);
  EXPECT_TRUE(holds(arenas.previous(), 1));
  EXPECT_TRUE(arenas.swap_with_previous().ok());
  EXPECT_TRUE(holds(arenas.serving(), 1));
  EXPECT_TRUE(holds(arenas.previous(), 2));
}

TEST(WeightArenas, OverwritingEndsTheRollback) {
  WeightArenas arenas;
  serve_version(arenas, 1);
  serve_version(arenas, 2);
  {
    auto standby = arenas.acquire_standby(kBytes);
    ASSERT_TRUE(standby->overwrite(kBytes).ok());
  }
  EXPECT_EQ(arenas.previous(), nullptr);
  EXPECT_EQ(arenas.swap_with_previous().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(holds(arenas.serving(), 2));
}

TEST(WeightArenas, OnlyOneStandbyIsOutAtATime) {
  WeightArenas arenas;
  const auto first = arenas.acquire_standby(kBytes);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(arenas.acquire_standby(kBytes).status().code(), StatusCode::kFailedPrecondition);
}

TEST(WeightArenas, APublishedVersionThatIsNotInstalledFreesItsArenaWhenDropped) {
  WeightArenas arenas;
  serve_version(arenas, 1);
  StagedWeightsPtr staged = write_version(arenas, 2);
  EXPECT_EQ(arenas.acquire_standby(kBytes).status().code(), StatusCode::kUnavailable);
  staged.reset();
  EXPECT_TRUE(arenas.acquire_standby(kBytes).ok());
  EXPECT_TRUE(holds(arenas.serving(), 1));
}

TEST(WeightArenas, ALargerVersionGrowsTheStandbyOnly) {
  WeightArenas arenas;
  serve_version(arenas, 1);
  const StagedWeightsPtr large = write_version(arenas, 2, 3 * kBytes);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(large->arena.size(), 3 * kBytes);
  EXPECT_EQ(arenas.allocated_bytes(), kBytes + 3 * kBytes);
  EXPECT_TRUE(holds(arenas.serving(), 1));
}

TEST(WeightArenas, AnArenaAboveTheLimitIsRefusedWithBothNumbers) {
  WeightArenas arenas(2 * kBytes);
  const auto refused = arenas.acquire_standby(2 * kBytes + 1);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("8193 bytes, limit 8192"));
}

TEST(WeightArenas, AnArenaThatDoesNotFitTheAddressSpaceIsAStatus) {
  WeightArenas arenas;
  auto standby = arenas.acquire_standby(uint64_t{1} << 60);
  ASSERT_TRUE(standby.ok());
  EXPECT_EQ(standby->overwrite(uint64_t{1} << 60).status().code(), StatusCode::kResourceExhausted);
  standby = arenas.acquire_standby(kBytes);
}

TEST(WeightArenas, VersionsOutliveTheArenas) {
  StagedWeightsPtr reader;
  {
    WeightArenas arenas;
    serve_version(arenas, 7);
    reader = arenas.serving();
    serve_version(arenas, 8);
  }
  EXPECT_TRUE(holds(reader, 7));
}

TEST(WeightArenas, ReadersOnOtherThreadsNeverSeeTheirVersionChange) {
  WeightArenas arenas;
  serve_version(arenas, 1);
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      while (!stop) {
        const StagedWeightsPtr weights = arenas.serving();
        if (!holds(weights, weights->weight_version % 200)) ++torn;
        std::this_thread::yield();
      }
    });
  }
  uint64_t written = 1;
  for (int tries = 0; written < 50 && tries < 10'000'000; ++tries) {
    auto standby = arenas.acquire_standby(kBytes);
    if (!standby.ok()) {
      std::this_thread::yield();
      continue;
    }
    ++written;
    auto memory = standby->overwrite(kBytes);
    std::fill(memory->begin(), memory->end(), static_cast<std::byte>(written % 200));
    arenas.set_serving(std::move(*standby).publish(version(written)));
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(written, 50u);
}

}  // namespace
}  // namespace warproll
