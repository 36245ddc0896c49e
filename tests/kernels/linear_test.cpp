#include "kernels/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "kernels/dequantise.h"
#include "kernels/embedding.h"
#include "op_support.h"

namespace warproll {
namespace {

using testing::kAllFormats;
using testing::name_of;
using testing::poisoned;
using testing::random_floats;
using testing::random_weight;
using testing::TestFormat;
using testing::TestWeight;

// F32 products and sums of 16 lanes: about sqrt(cols / 16) + 4 roundings of 6e-8 in practice.
constexpr double kRelative = 1e-6;

std::vector<float> linear(const std::vector<float>& x, const WeightView& weight, int32_t tokens,
                          Dtype round_to = Dtype::kF32) {
  std::vector<float> y = poisoned(int64_t{tokens} * weight.rows);
  linear_cpu(
      {.x = x.data(), .weight = weight, .y = y.data(), .num_tokens = tokens, .round_to = round_to});
  return y;
}

void expect_near_f64(const std::vector<float>& x, const TestWeight& w, int32_t tokens,
                     const std::vector<float>& y) {
  const int32_t rows = w.view.rows, cols = w.view.cols;
  for (int32_t t = 0; t < tokens; ++t) {
    for (int32_t r = 0; r < rows; ++r) {
      double sum = 0.0, magnitude = 0.0;
      for (int32_t c = 0; c < cols; ++c) {
        const double product = w.values[size_t(r) * cols + c] * x[size_t(t) * cols + c];
        sum += product;
        magnitude += std::fabs(product);
      }
      ASSERT_NEAR(y[size_t(t) * rows + r], sum, kRelative * magnitude + 1e-30)
          << rows << " x " << cols << ", token " << t << " row " << r;
    }
  }
}

TEST(Linear, AgreesWithF64InEveryFormatAndShape) {
  std::mt19937 rng(21);
  for (const TestFormat format : kAllFormats) {
    SCOPED_TRACE(name_of(format));
    for (const int32_t rows : {1, 3, 4, 5, 17}) {
      for (const int32_t cols : {1, 15, 16, 17, 96, 511, 512, 513, 1056}) {
        if (format == TestFormat::kMxfp8 && cols % 32 != 0) continue;
        const TestWeight w = random_weight(format, 1, rows, cols, rng);
        for (const int32_t tokens : {1, 2, 33}) {
          const auto x = random_floats(int64_t{tokens} * cols, rng);
          expect_near_f64(x, w, tokens, linear(x, w.view, tokens));
        }
      }
    }
  }
}

TEST(Linear, ATokenHasTheSameBitsAloneAndInAnyBatch) {
  std::mt19937 rng(22);
  for (const TestFormat format : kAllFormats) {
    SCOPED_TRACE(name_of(format));
    const TestWeight w = random_weight(format, 1, 7, 544, rng);
    const int32_t tokens = 71;
    const auto x = random_floats(int64_t{tokens} * 544, rng);
    const auto all = linear(x, w.view, tokens);
    for (int32_t t = 0; t < tokens; ++t) {
      const std::vector<float> alone_x(x.begin() + t * 544, x.begin() + (t + 1) * 544);
      const auto alone = linear(alone_x, w.view, 1);
      ASSERT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + t * 7)) << "token " << t;
    }
  }
}

TEST(Linear, ThreadCountDoesNotChangeOneBit) {
  std::mt19937 rng(23);
  const int32_t rows = 515, cols = 1024, tokens = 5;  // above kMinParallelWork
  const TestWeight w = random_weight(TestFormat::kBf16, 1, rows, cols, rng);
  const auto x = random_floats(int64_t{tokens} * cols, rng);
  const auto wanted = linear(x, w.view, tokens);
  testing::with_thread_counts([&] { EXPECT_TRUE(linear(x, w.view, tokens) == wanted); });
}

TEST(Linear, RoundsTheFinishedSumOnce) {
  std::mt19937 rng(24);
  const TestWeight w = random_weight(TestFormat::kBf16, 1, 9, 64, rng);
  const auto x = random_floats(3 * 64, rng);
  const auto exact = linear(x, w.view, 3);
  const auto bf16 = linear(x, w.view, 3, Dtype::kBf16);
  const auto f16 = linear(x, w.view, 3, Dtype::kF16);
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(bf16[i], bf16_to_f32(f32_to_bf16(exact[i])));
    EXPECT_EQ(f16[i], f16_to_f32(f32_to_f16(exact[i])));
  }
}

TEST(Linear, ZeroTokensAndZeroColumnsAreFine) {
  std::mt19937 rng(25);
  const TestWeight w = random_weight(TestFormat::kF32, 1, 4, 16, rng);
  EXPECT_TRUE(linear({}, w.view, 0).empty());
  TestWeight empty = random_weight(TestFormat::kF32, 1, 4, 0, rng);
  EXPECT_EQ(linear({}, empty.view, 0).size(), 0u);
}

TEST(Linear, RefusesBadArgumentsWithTheirValues) {
  std::mt19937 rng(26);
  TestWeight w = random_weight(TestFormat::kMxfp8, 1, 4, 64, rng);
  const auto x = random_floats(64, rng);
  EXPECT_THROW(linear_cpu({.weight = w.view, .num_tokens = 1}), std::invalid_argument);
  EXPECT_THROW(linear(x, w.view, 1, Dtype::kU8), std::invalid_argument);
  WeightView no_scales = w.view;
  no_scales.scales = nullptr;
  EXPECT_THROW(linear(x, no_scales, 1), std::invalid_argument);
  WeightView odd = w.view;
  odd.cols = 63;
  try {
    linear(x, odd, 1);
    FAIL() << "63 columns of MXFP8 were taken";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("[1, 4, 63]"), std::string::npos) << error.what();
  }
}

TEST(Dequantise, GivesTheValuesOfEveryFormat) {
  std::mt19937 rng(27);
  for (const TestFormat format : kAllFormats) {
    const TestWeight w = random_weight(format, 3, 11, 96, rng);
    for (int32_t m = 0; m < 3; ++m) {
      std::vector<float> out = poisoned(4 * 50);
      dequantise_cpu(w.view.matrix(m), 6, 4, 40, 50, out.data());
      for (int32_t r = 0; r < 4; ++r) {
        for (int32_t c = 0; c < 50; ++c) {
          const double wanted = w.values[(size_t(m) * 11 + 6 + r) * 96 + 40 + c];
          ASSERT_EQ(out[size_t(r) * 50 + c], static_cast<float>(wanted)) << name_of(format);
        }
      }
    }
    EXPECT_THROW(dequantise_cpu(w.view, 8, 4, 0, 1, nullptr), std::invalid_argument);
  }
}

TEST(WeightView, SlicedRowsAreTheRowsOfEveryMatrix) {
  std::mt19937 rng(28);
  for (const TestFormat format : kAllFormats) {
    const TestWeight w = random_weight(format, 2, 20, 96, rng);
    const WeightView slice = w.view.slice_rows(10, 10);  // 10 is a multiple of the 5-row blocks
    for (int32_t m = 0; m < 2; ++m) {
      std::vector<float> wanted = poisoned(10 * 96), got = poisoned(10 * 96);
      dequantise_cpu(w.view.matrix(m), 10, 10, 0, 96, wanted.data());
      dequantise_cpu(slice.matrix(m), 0, 10, 0, 96, got.data());
      EXPECT_TRUE(got == wanted) << name_of(format) << " matrix " << m;
    }
  }
}

TEST(Embedding, CopiesTheRowOfEachId) {
  std::mt19937 rng(29);
  for (const TestFormat format : kAllFormats) {
    const TestWeight w = random_weight(format, 1, 13, 96, rng);
    const std::vector<int32_t> ids{12, 0, 5, 5};
    std::vector<float> y = poisoned(4 * 96);
    embedding_cpu({.token_ids = ids.data(), .weight = w.view, .y = y.data(), .num_tokens = 4});
    for (size_t t = 0; t < ids.size(); ++t) {
      for (size_t c = 0; c < 96; ++c) {
        ASSERT_EQ(y[t * 96 + c], static_cast<float>(w.values[size_t(ids[t]) * 96 + c]));
      }
    }
  }
}

TEST(Embedding, RefusesIdsOutOfRangeByValue) {
  std::mt19937 rng(30);
  const TestWeight w = random_weight(TestFormat::kBf16, 1, 13, 8, rng);
  std::vector<float> y(16);
  for (const int32_t bad : {-1, 13}) {
    const std::vector<int32_t> ids{3, bad};
    try {
      embedding_cpu({.token_ids = ids.data(), .weight = w.view, .y = y.data(), .num_tokens = 2});
      FAIL() << bad << " was taken";
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find("token id at 1 is " + std::to_string(bad)),
                std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace warproll
