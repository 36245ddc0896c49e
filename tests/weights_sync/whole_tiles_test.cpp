#include "weights_sync/whole_tiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace warproll {
namespace {

// Places, never read.
std::byte memory[64];
std::byte* place(int i) { return memory + i; }

WeightView rows_of(WeightFormat format, int32_t rows, const std::byte* data,
                   const std::byte* scales = nullptr) {
  return {.format = format, .data = data, .scales = scales, .rows = rows, .cols = 128};
}
TileTarget target(bool gate_up, int32_t matrix, int32_t first_row) {
  TileTarget to;
  to.tiles.num_tiles = 4;  // of gate and up: 32 rows each
  to.tiles.num_experts = 8;
  to.out = place(gate_up ? 62 : 63);
  to.gate_up = gate_up;
  to.first_matrix = matrix;
  to.first_row = first_row;
  return to;
}

TEST(WholeTiles, AreThoseWhoseFourTensorsCameInAnyOrder) {
  constexpr auto kFormat = WeightFormat::kMxfp8;
  std::vector<PackRequest> requests;
  for (int32_t m = 0; m < 3; ++m) {
    requests.push_back({rows_of(kFormat, 32, place(4 * m)), target(true, m, 0)});
    requests.push_back({rows_of(kFormat, 32, nullptr, place(4 * m + 1)), target(true, m, 0)});
    requests.push_back({rows_of(kFormat, 32, place(4 * m + 2)), target(true, m, 32)});
    requests.push_back({rows_of(kFormat, 32, nullptr, place(4 * m + 3)), target(true, m, 32)});
    // Down of the same matrix: other tiles.
    requests.push_back({rows_of(kFormat, 64, place(20 + m)), target(false, m, 0)});
    requests.push_back({rows_of(kFormat, 64, nullptr, place(30 + m)), target(false, m, 0)});
  }
  std::mt19937 rng(1);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(requests.begin(), requests.end(), rng);
    JoinedTiles joined = join_tiles(requests);
    EXPECT_TRUE(joined.rest.empty());
    ASSERT_EQ(joined.whole.size(), 6u);
    for (const TileItem& whole : joined.whole) {
      const int m = whole.to.first_matrix;
      EXPECT_EQ(whole.to.first_row, 0);
      if (whole.to.gate_up) {
        EXPECT_EQ(whole.rows.data, place(4 * m));
        EXPECT_EQ(whole.rows.scales, place(4 * m + 1));
        EXPECT_EQ(whole.up.data, place(4 * m + 2));
        EXPECT_EQ(whole.up.scales, place(4 * m + 3));
      } else {
        EXPECT_EQ(whole.rows.data, place(20 + m));
        EXPECT_EQ(whole.rows.scales, place(30 + m));
      }
    }
  }
}

TEST(WholeTiles, WhatLacksATensorStaysAsItCame) {
  constexpr auto kFormat = WeightFormat::kMxfp8;
  const std::vector<PackRequest> all = {
      {rows_of(kFormat, 32, place(0)), target(true, 0, 0)},
      {rows_of(kFormat, 32, nullptr, place(1)), target(true, 0, 0)},
      {rows_of(kFormat, 32, place(2)), target(true, 0, 32)},
      {rows_of(kFormat, 32, nullptr, place(3)), target(true, 0, 32)}};
  for (size_t without = 0; without < all.size(); ++without) {
    std::vector<PackRequest> some = all;
    some.erase(some.begin() + static_cast<ptrdiff_t>(without));
    const JoinedTiles joined = join_tiles(some);
    EXPECT_TRUE(joined.whole.empty());
    ASSERT_EQ(joined.rest.size(), some.size());
    for (size_t i = 0; i < some.size(); ++i) {
      EXPECT_EQ(joined.rest[i].rows.data, some[i].rows.data);
      EXPECT_EQ(joined.rest[i].rows.scales, some[i].rows.scales);
      EXPECT_EQ(joined.rest[i].to.first_row, some[i].to.first_row);
    }
  }
}

TEST(WholeTiles, SixteenBitElementsNeedNoScalesAndDownNoOtherTensor) {
  constexpr auto kFormat = WeightFormat::kBf16;
  EXPECT_EQ(
      join_tiles(std::vector<PackRequest>{{rows_of(kFormat, 64, place(0)), target(false, 0, 0)}})
          .whole.size(),
      1u);
  const std::vector<PackRequest> gate_up = {{rows_of(kFormat, 32, place(0)), target(true, 0, 0)},
                                            {rows_of(kFormat, 32, place(1)), target(true, 0, 32)}};
  EXPECT_EQ(join_tiles(gate_up).whole.size(), 1u);
}

TEST(WholeTiles, PartsOfAMatrixFindTheirOwn) {
  constexpr auto kFormat = WeightFormat::kBf16;
  const std::vector<PackRequest> parts = {{rows_of(kFormat, 8, place(0)), target(true, 0, 0)},
                                          {rows_of(kFormat, 8, place(1)), target(true, 0, 8)},
                                          {rows_of(kFormat, 8, place(2)), target(true, 0, 40)},
                                          {rows_of(kFormat, 8, place(3)), target(true, 1, 40)},
                                          {rows_of(kFormat, 16, place(4)), target(true, 2, 0)},
                                          {rows_of(kFormat, 8, place(5)), target(true, 2, 32)}};
  const JoinedTiles joined = join_tiles(parts);
  ASSERT_EQ(joined.whole.size(), 1u);  // rows 8..15 of gate and of up
  EXPECT_EQ(joined.whole[0].rows.data, place(1));
  EXPECT_EQ(joined.whole[0].up.data, place(2));
  EXPECT_EQ(joined.whole[0].to.first_row, 8);
  EXPECT_EQ(joined.rest.size(), 4u);
}

TEST(WholeTiles, GateAndUpInOneTensorStayAsTheyCame) {
  const std::vector<PackRequest> both = {
      {rows_of(WeightFormat::kBf16, 64, place(0)), target(true, 0, 0)}};
  const JoinedTiles joined = join_tiles(both);
  EXPECT_TRUE(joined.whole.empty());
  EXPECT_EQ(joined.rest.size(), 1u);
}

}  // namespace
}  // namespace warproll
