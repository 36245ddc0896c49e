// cluster_linear against F64 on the host and stream_linear, its independence of the batch, and what it
// refuses.
#include "kernels/step/cluster_linear.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "kernels/step/stream_linear.h"
#include "linear_support.h"

namespace warproll {
namespace {

using namespace testing;  // linear_support.h

constexpr size_t kCanaries = 32;

// y, poisoned before, with canaries around it: F32 as it is, BF16 widened. x is tiles over 2048 columns,
// BF16 over 4096.
template <class Params, class Op>
std::vector<float> run_op(const TileMatrix& weight, const std::vector<uint16_t>& x, bool f32,
                          Op op) {
  const auto cols = static_cast<size_t>(weight.cols);
  const size_t tokens = x.size() / cols;
  const size_t count = tokens * static_cast<size_t>(weight.num_tiles) * kTileRows;
  DeviceBuffer<uint16_t> device_x(x), tile(x.size()), y(count + 2 * kCanaries);
  DeviceBuffer<float> scales(tokens), y_f32(count + 2 * kCanaries);
  WARPROLL_CUDA_CHECK(cudaMemset(y.data(), 0xff, y.size() * 2));
  WARPROLL_CUDA_CHECK(cudaMemset(y_f32.data(), 0xff, y_f32.size() * 4));
  convert_activations(
      {device_x.data(), {tile.data(), scales.data()}, static_cast<int32_t>(tokens), weight.cols},
      nullptr);
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  Params p;
  if (weight.cols == 2048) {
    p.x = {tile.data(), scales.data()};
  } else {
    p.x_bf16 = device_x.data();
  }
  p.weight = weight;
  if (f32) {
    p.y_f32 = y_f32.data() + kCanaries;
  } else {
    p.y = y.data() + kCanaries;
  }
  p.num_tokens = static_cast<int32_t>(tokens);
  op(p, nullptr);
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  std::vector<float> all = y_f32.to_host();
  if (!f32) {
    const auto bits = y.to_host();
    for (size_t i = 0; i < bits.size(); ++i) all[i] = bf16_to_f32(bits[i]);
  }
  for (size_t i = 0; i < kCanaries; ++i) {
    EXPECT_TRUE(std::isnan(all[i]) && std::isnan(all[all.size() - 1 - i])) << "written beside y";
  }
  return {all.begin() + kCanaries, all.end() - kCanaries};
}
std::vector<float> run(const TileMatrix& weight, const std::vector<uint16_t>& x, bool f32 = true) {
  return run_op<ClusterLinearParams>(weight, x, f32, cluster_linear);
}

// One of each way to share W out, with tiles that are left over; of the last, more than clusters have at
// once.
constexpr std::pair<int32_t, int32_t> kShapes[] = {{32, 2048},   {2080, 2048},  {32, 4096},
                                                   {2048, 4096}, {18464, 2048}, {6016, 4096}};

TEST(ClusterLinearGpu, IsWithinItsToleranceOfF64) {
  SKIP_WITHOUT_GPU();
  for (const auto& [rows, cols] : kShapes) {
    const RandomExperts experts({rows, cols, 1, 1}, WeightFormat::kBf16, 71, /*keep_rows=*/false);
    const std::vector<double> w = values_of(experts.down_tiles);
    for (const int32_t tokens : {1, 3, 8, 9, 17, 31, 32, 33, 40, 49, 63, 64, 65, 100, 128, 200}) {
      SCOPED_TRACE(::testing::PrintToString(std::tuple(rows, cols, tokens)));
      const auto x = random_x(tokens, cols, 72);
      ASSERT_NO_FATAL_FAILURE(expect_near_f64(w, x, rows, cols, run(experts.down_tiles, x)));
    }
  }
}

TEST(ClusterLinearGpu, LargeActivationsDoNotOverflow) {
  SKIP_WITHOUT_GPU();
  for (const int32_t cols : {2048, 4096}) {
    const RandomExperts experts({160, cols, 1, 1}, WeightFormat::kBf16, 73, /*keep_rows=*/false);
    const std::vector<double> w = values_of(experts.down_tiles);
    const auto x = random_x(20, cols, 74, 3e6f);
    ASSERT_NO_FATAL_FAILURE(expect_near_f64(w, x, 160, cols, run(experts.down_tiles, x)));
  }
}

// The same sums in another order: rounded to BF16 they are almost always the same.
TEST(ClusterLinearGpu, IsStreamLinearInAnotherOrder) {
  SKIP_WITHOUT_GPU();
  size_t others = 0, all = 0;
  for (const auto& [rows, cols] : kShapes) {
    const RandomExperts experts({rows, cols, 1, 1}, WeightFormat::kBf16, 75, /*keep_rows=*/false);
    for (const int32_t tokens : {5, 64}) {
      const auto x = random_x(tokens, cols, 76);
      const auto got = run(experts.down_tiles, x, /*f32=*/false);
      const auto want =
          run_op<StreamLinearParams>(experts.down_tiles, x, /*f32=*/false, stream_linear);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], want[i], 1e-2f * std::fabs(want[i]) + 1e-4f) << i;
        others += got[i] != want[i];
      }
      all += got.size();
    }
  }
  RecordProperty("others", static_cast<int>(others));
  EXPECT_LE(others, all / 500) << "of " << all;
}

TEST(ClusterLinearGpu, ATokensBitsDoNotDependOnItsBatch) {
  SKIP_WITHOUT_GPU();
  for (const auto& [rows, cols] : kShapes) {
    const RandomExperts experts({rows, cols, 1, 1}, WeightFormat::kBf16, 77, /*keep_rows=*/false);
    const auto x = random_x(200, cols, 78);
    const auto whole = run(experts.down_tiles, x);
    for (const auto& [first, count] :
         {std::pair{0, 1}, {199, 1}, {100, 7}, {50, 64}, {1, 150}, {77, 20}, {31, 33}, {120, 48}}) {
      const std::vector<uint16_t> some(x.begin() + int64_t{first} * cols,
                                       x.begin() + int64_t{first + count} * cols);
      const auto part = run(experts.down_tiles, some);
      ASSERT_EQ(std::memcmp(part.data(), whole.data() + size_t(rows) * first, part.size() * 4), 0)
          << count << " tokens from " << first << ", " << rows << " x " << cols;
    }
  }
}

TEST(ClusterLinearGpu, AGraphOfManyGivesTheSameBitsEveryTime) {
  SKIP_WITHOUT_GPU();
  const RandomExperts up({4096, 2048, 1, 1}, WeightFormat::kBf16, 79, false);
  const RandomExperts down({2048, 4096, 1, 1}, WeightFormat::kBf16, 80, false);
  for (const int32_t tokens : {1, 20, 64, 100}) {
    expect_equal_replays<ClusterLinearParams>(up.down_tiles, down.down_tiles,
                                              random_x(tokens, 2048, 81), tokens, cluster_linear);
  }
}

TEST(ClusterLinearGpu, WhatItCannotDoIsNamed) {
  const auto message = [](const ClusterLinearParams& p) -> std::string {
    try {
      cluster_linear(p, nullptr);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  ClusterLinearParams p;
  p.weight = {TileFormat::kF16, nullptr, 1, 2, 2048};
  p.num_tokens = 3;
  EXPECT_NE(message(p).find("wanted x with its scales, or x_bf16"), std::string::npos);
  uint16_t x = 0;
  p.x_bf16 = &x;
  EXPECT_NE(message(p).find("columns 4096, for BF16 x"), std::string::npos);
  p.weight = {TileFormat::kMxfp8, nullptr, 1, 2, 4096};
  EXPECT_NE(message(p).find("one matrix of F16 tiles"), std::string::npos);
  p.weight.format = TileFormat::kF16;
  EXPECT_NE(message(p).find("weight.data or y is null"), std::string::npos);
  p.num_tokens = 0;
  EXPECT_EQ(message(p), "nothing thrown");
}

}  // namespace
}  // namespace warproll
