#include "kernels/quantise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "op_support.h"

namespace warproll {
namespace {

struct Quantised {
  std::vector<uint8_t> elements, scales;
  std::optional<int64_t> bad;
};

Quantised quantise(const std::vector<float>& source, int64_t rows, int64_t cols) {
  Quantised q;
  q.elements.assign(source.size(), 0xaa);
  q.scales.assign(source.size() / 32, 0xaa);
  q.bad = quantise_mxfp8_cpu({.source = reinterpret_cast<const std::byte*>(source.data()),
                              .source_dtype = Dtype::kF32,
                              .rows = rows,
                              .cols = cols,
                              .elements = q.elements.data(),
                              .scales = q.scales.data()});
  return q;
}

// The recipe in F64: frexp for the exponent, a search over all E4M3 codes for the element.
void check_block(const float* x, const uint8_t* elements, uint8_t scale_bits) {
  double amax = 0.0;
  for (int i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(static_cast<double>(x[i])));
  int exponent = -127;
  if (amax > 0.0) {
    std::frexp(amax, &exponent);  // amax in [2^(exponent - 1), 2^exponent)
    exponent = std::max(exponent - 1 - 8, -127);
  }
  ASSERT_EQ(scale_bits, exponent + 127) << "amax " << amax;
  for (int i = 0; i < 32; ++i) {
    const double scaled = std::fabs(std::ldexp(static_cast<double>(x[i]), -exponent));
    int best = 0;
    for (int code = 1; code <= 0x7e; ++code) {
      const double now = std::fabs(e4m3_to_f32(static_cast<uint8_t>(code)) - scaled);
      const double before = std::fabs(e4m3_to_f32(static_cast<uint8_t>(best)) - scaled);
      if (now < before || (now == before && code % 2 == 0)) best = code;
    }
    ASSERT_EQ(elements[i], best | (std::signbit(x[i]) ? 0x80 : 0)) << x[i] << " amax " << amax;
  }
}

TEST(QuantiseMxfp8, IsTheOcpRecipeForAnyMagnitude) {
  std::mt19937 rng(11);
  std::uniform_int_distribution<int> exponent(-148, 126);
  for (int trial = 0; trial < 400; ++trial) {
    const float magnitude = std::ldexp(1.0f, exponent(rng));
    std::vector<float> x = testing::random_floats(3 * 64, rng);
    for (float& v : x) v = std::max(-1.9f, std::min(1.9f, v)) * magnitude;
    const Quantised q = quantise(x, 3, 64);
    ASSERT_EQ(q.bad, std::nullopt);
    for (int block = 0; block < 6; ++block) {
      check_block(x.data() + block * 32, q.elements.data() + block * 32, q.scales[block]);
    }
  }
}

TEST(QuantiseMxfp8, SaturatesBetween448And512TimesTheScale) {
  std::vector<float> x(32, 0.0f);
  x[0] = 511.0f;
  x[1] = -500.0f;
  x[2] = 448.0f;
  const Quantised q = quantise(x, 1, 32);
  EXPECT_EQ(q.scales[0], 127);
  EXPECT_EQ(q.elements[0], 0x7e);
  EXPECT_EQ(q.elements[1], 0xfe);
  EXPECT_EQ(q.elements[2], 0x7e);
}

TEST(QuantiseMxfp8, ZeroBlocksGetTheSmallestScaleAndKeepTheirSigns) {
  std::vector<float> x(32, 0.0f);
  x[5] = -0.0f;
  const Quantised q = quantise(x, 1, 32);
  EXPECT_EQ(q.scales[0], 0);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(q.elements[i], i == 5 ? 0x80 : 0x00);
}

TEST(QuantiseMxfp8, ReportsTheFirstNotFiniteValue) {
  std::mt19937 rng(12);
  // Large enough for several threads: the first one wins whatever thread sees it.
  const int64_t rows = 1100, cols = 1024;
  const std::vector<float> clean = testing::random_floats(rows * cols, rng);
  testing::with_thread_counts([&] {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      std::vector<float> x = clean;
      x[700 * cols + 33] = bad;
      x[12 * cols + 77] = bad;
      x[1099 * cols] = bad;
      const Quantised q = quantise(x, rows, cols);
      EXPECT_EQ(q.bad, 12 * cols + 77);
      EXPECT_EQ(q.scales[12 * (cols / 32) + 77 / 32], 255);
    }
  });
  EXPECT_EQ(quantise(clean, rows, cols).bad, std::nullopt);
}

TEST(QuantiseMxfp8, SixteenBitSourcesGiveTheBitsOfTheirF32Values) {
  std::mt19937 rng(13);
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
    std::vector<uint16_t> source(4 * 96);
    std::vector<float> wide;
    for (uint16_t& bits : source) {
      const float value = testing::random_floats(1, rng)[0];
      bits = dtype == Dtype::kBf16 ? f32_to_bf16(value) : f32_to_f16(value);
      wide.push_back(dtype == Dtype::kBf16 ? bf16_to_f32(bits) : f16_to_f32(bits));
    }
    std::vector<uint8_t> elements(source.size()), scales(source.size() / 32);
    EXPECT_EQ(quantise_mxfp8_cpu({.source = reinterpret_cast<const std::byte*>(source.data()),
                                  .source_dtype = dtype,
                                  .rows = 4,
                                  .cols = 96,
                                  .elements = elements.data(),
                                  .scales = scales.data()}),
              std::nullopt);
    const Quantised q = quantise(wide, 4, 96);
    EXPECT_EQ(elements, q.elements);
    EXPECT_EQ(scales, q.scales);
  }
}

TEST(QuantiseMxfp8, RefusesColumnsThatAreNoMultipleOf32AndOtherDtypes) {
  std::vector<float> x(64);
  EXPECT_THROW(static_cast<void>(quantise(x, 2, 31)), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(quantise_mxfp8_cpu({.source_dtype = Dtype::kU8})),
               std::invalid_argument);
  EXPECT_THROW(static_cast<void>(quantise_mxfp8_cpu({.rows = 1, .cols = 32})),
               std::invalid_argument);
  EXPECT_EQ(quantise({}, 0, 32).bad, std::nullopt);
}

}  // namespace
}  // namespace warproll
