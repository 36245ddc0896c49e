#include "kernels/rmsnorm.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <stdexcept>

#include "kernels/residual_add.h"
#include "kernels/rounding.h"
#include "op_support.h"

namespace warproll {
namespace {

using testing::poisoned;
using testing::random_floats;
using testing::random_weight;
using testing::TestFormat;
using testing::TestWeight;

std::vector<float> rmsnorm(const std::vector<float>& x, const TestWeight& w, Dtype weight_dtype,
                           int64_t rows, Dtype round_to = Dtype::kF32) {
  std::vector<float> y = poisoned(static_cast<int64_t>(x.size()));
  rmsnorm_cpu({.x = x.data(),
               .weight = w.view.data,
               .weight_dtype = weight_dtype,
               .y = y.data(),
               .num_rows = rows,
               .row_size = w.view.cols,
               .eps = 1e-6f,
               .round_to = round_to});
  return y;
}

TEST(RmsNorm, AgreesWithF64ForEveryWeightDtypeAndSize) {
  std::mt19937 rng(31);
  const std::pair<TestFormat, Dtype> kinds[] = {{TestFormat::kF32, Dtype::kF32},
                                                {TestFormat::kF16, Dtype::kF16},
                                                {TestFormat::kBf16, Dtype::kBf16}};
  for (const auto& [format, dtype] : kinds) {
    for (const int32_t size : {1, 15, 16, 17, 64, 255, 256, 257, 2048}) {
      const TestWeight w = random_weight(format, 1, 1, size, rng);
      const auto x = random_floats(3 * size, rng, 4.0f);
      const auto y = rmsnorm(x, w, dtype, 3);
      for (size_t row = 0; row < 3; ++row) {
        double squares = 0.0;
        for (int32_t i = 0; i < size; ++i) {
          const double v = x[row * size + i];
          squares += v * v;
        }
        const double scale = 1.0 / std::sqrt(squares / size + double{1e-6f});
        for (int32_t i = 0; i < size; ++i) {
          const double wanted = x[row * size + i] * scale * w.values[i];
          ASSERT_NEAR(y[row * size + i], wanted, 1e-6 * std::fabs(wanted) + 1e-30) << size;
        }
      }
    }
  }
}

TEST(RmsNorm, ARowHasTheSameBitsAloneInABatchAndWithAnyThreadCount) {
  std::mt19937 rng(32);
  const int32_t size = 1030;
  const int64_t rows = 1100;  // above kMinParallelWork
  const TestWeight w = random_weight(TestFormat::kBf16, 1, 1, size, rng);
  const auto x = random_floats(rows * size, rng);
  std::vector<float> wanted;
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<float> alone(x.begin() + row * size, x.begin() + (row + 1) * size);
    const auto y = rmsnorm(alone, w, Dtype::kBf16, 1);
    wanted.insert(wanted.end(), y.begin(), y.end());
  }
  testing::with_thread_counts([&] { EXPECT_TRUE(rmsnorm(x, w, Dtype::kBf16, rows) == wanted); });
}

TEST(RmsNorm, MayOverwriteItsInputAndRoundsOnce) {
  std::mt19937 rng(33);
  const TestWeight w = random_weight(TestFormat::kBf16, 1, 1, 100, rng);
  auto x = random_floats(200, rng);
  auto wanted = rmsnorm(x, w, Dtype::kBf16, 2);
  for (float& v : wanted) v = bf16_to_f32(f32_to_bf16(v));
  rmsnorm_cpu({.x = x.data(),
               .weight = w.view.data,
               .y = x.data(),
               .num_rows = 2,
               .row_size = 100,
               .round_to = Dtype::kBf16});
  EXPECT_TRUE(x == wanted);
}

TEST(RmsNorm, AZeroRowStaysZeroAndBadArgumentsAreRefused) {
  std::mt19937 rng(34);
  const TestWeight w = random_weight(TestFormat::kBf16, 1, 1, 8, rng);
  EXPECT_TRUE(rmsnorm(std::vector<float>(8, 0.0f), w, Dtype::kBf16, 1) ==
              std::vector<float>(8, 0.0f));
  EXPECT_TRUE(rmsnorm({}, w, Dtype::kBf16, 0).empty());
  EXPECT_THROW(rmsnorm({}, w, Dtype::kU8, 0), std::invalid_argument);
  EXPECT_THROW(rmsnorm_cpu({.num_rows = 1, .row_size = 0}), std::invalid_argument);
  EXPECT_THROW(rmsnorm_cpu({.num_rows = 1, .row_size = 8}), std::invalid_argument);
}

TEST(Rounding, IsThatOfTheDtypeForAllBitPatterns) {
  std::mt19937 rng(35);
  for (int i = 0; i < 100000; ++i) {
    const auto bits = static_cast<uint32_t>(rng());
    float bf16 = std::bit_cast<float>(bits), f16 = bf16, f32 = bf16;
    const float value = bf16;
    round_activations(&bf16, 1, Dtype::kBf16);
    round_activations(&f16, 1, Dtype::kF16);
    round_activations(&f32, 1, Dtype::kF32);
    EXPECT_EQ(std::bit_cast<uint32_t>(f32), bits);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(bf16) && std::isnan(f16)) << std::hex << bits;
    } else {
      ASSERT_EQ(bf16, bf16_to_f32(f32_to_bf16(value))) << std::hex << bits;
      ASSERT_EQ(f16, f16_to_f32(f32_to_f16(value))) << std::hex << bits;
    }
  }
  EXPECT_THROW(check_activation_dtype(Dtype::kI32, "test"), std::invalid_argument);
}

TEST(ResidualAdd, AddsAndRoundsOnce) {
  std::mt19937 rng(36);
  const auto x = random_floats(101, rng), y = random_floats(101, rng);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    auto sum = x;
    residual_add_cpu({.x = sum.data(), .y = y.data(), .count = 101, .round_to = dtype});
    for (size_t i = 0; i < x.size(); ++i) {
      const float exact = x[i] + y[i];
      const float wanted = dtype == Dtype::kF32    ? exact
                           : dtype == Dtype::kBf16 ? bf16_to_f32(f32_to_bf16(exact))
                                                   : f16_to_f32(f32_to_f16(exact));
      EXPECT_EQ(sum[i], wanted);
    }
  }
  residual_add_cpu({});
  EXPECT_THROW(residual_add_cpu({.count = -1}), std::invalid_argument);
  EXPECT_THROW(residual_add_cpu({.count = 1}), std::invalid_argument);
}

}  // namespace
}  // namespace warproll
