#include "kernels/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

namespace warproll {
namespace {

constexpr Dtype kAll[] = {Dtype::kF32, Dtype::kF16, Dtype::kBf16, Dtype::kF8E4M3, Dtype::kF8E8M0,
                          Dtype::kU8,  Dtype::kU16, Dtype::kI32,  Dtype::kI64};

// The nearest of `values` (ascending, by code) to |x|, ties to the even code: rounding by search,
// not by bit tricks.
template <typename Decode>
uint32_t nearest_code(double magnitude, uint32_t codes, const Decode& decode) {
  uint32_t low = 0, high = codes - 1;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (decode(middle) <= magnitude ? low : high) = middle;
  }
  const double down = magnitude - decode(low);
  const double up = decode(high) - magnitude;
  if (down == up) return low % 2 == 0 ? low : high;
  return down < up ? low : high;
}

float random_float(std::mt19937& rng) {
  for (;;) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(rng()));
    if (std::isfinite(value)) return value;
  }
}

TEST(Dtype, WordsAndSizesAreThoseOfSafetensors) {
  EXPECT_EQ(to_string(Dtype::kF8E4M3), "F8_E4M3");
  EXPECT_EQ(to_string(Dtype::kF8E8M0), "F8_E8M0");
  EXPECT_EQ(to_string(Dtype::kBf16), "BF16");
  for (const Dtype dtype : kAll) EXPECT_EQ(dtype_from_safetensors(to_string(dtype)), dtype);
  EXPECT_EQ(dtype_from_safetensors("F64"), std::nullopt);
  EXPECT_EQ(dtype_from_safetensors("bf16"), std::nullopt);
  EXPECT_EQ(dtype_bytes(Dtype::kI64), 8u);
  EXPECT_EQ(dtype_bytes(Dtype::kF8E4M3), 1u);
  EXPECT_THROW(static_cast<void>(dtype_bytes(static_cast<Dtype>(77))), std::invalid_argument);
}

TEST(Dtype, EveryBf16ValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = bf16_to_f32(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(value)))) << bits;
    } else {
      EXPECT_EQ(f32_to_bf16(value), bits);
    }
  }
}

TEST(Dtype, EveryF16ValueIsItsDefinitionAndSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = f16_to_f32(static_cast<uint16_t>(bits));
    const int exponent = static_cast<int>((bits >> 10) & 31);
    const int mantissa = static_cast<int>(bits & 1023);
    if (exponent == 31) {
      EXPECT_EQ(std::isinf(value), mantissa == 0);
      EXPECT_EQ(std::isnan(value), mantissa != 0);
      EXPECT_TRUE(mantissa != 0 || f32_to_f16(value) == bits);
      continue;
    }
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    EXPECT_EQ(value, (bits & 0x8000) != 0 ? -magnitude : magnitude);
    EXPECT_EQ(f32_to_f16(value), bits);
  }
}

TEST(Dtype, EveryE4M3ValueIsItsDefinitionAndSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const float value = e4m3_to_f32(static_cast<uint8_t>(bits));
    if ((bits & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    const int exponent = static_cast<int>((bits >> 3) & 15);
    const int mantissa = static_cast<int>(bits & 7);
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    EXPECT_EQ(value, (bits & 0x80) != 0 ? -magnitude : magnitude);
    EXPECT_EQ(f32_to_e4m3_saturate(value), bits);
  }
  EXPECT_EQ(e4m3_to_f32(0x7e), 448.0f);
}

TEST(Dtype, E8M0IsAPowerOfTwoAnd255IsNan) {
  for (int bits = 0; bits < 255; ++bits) {
    EXPECT_EQ(e8m0_to_f32(static_cast<uint8_t>(bits)), std::ldexp(1.0, bits - 127));
  }
  EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
}

TEST(Dtype, RoundingToBf16IsToNearestEven) {
  std::mt19937 rng(1);
  const auto decode = [](uint32_t code) -> double {
    // Code 0x7f80 stands for 2^128, where the next value would be: overflow rounds to inf.
    return code == 0x7f80 ? std::ldexp(1.0, 128) : bf16_to_f32(static_cast<uint16_t>(code));
  };
  for (int i = 0; i < 200000; ++i) {
    float value = random_float(rng);
    if (i % 2 == 0) {  // exactly between two values
      value = std::bit_cast<float>((std::bit_cast<uint32_t>(value) & 0xffff0000u) | 0x8000u);
    }
    const uint32_t wanted =
        nearest_code(std::fabs(value), 0x7f81, decode) | (std::signbit(value) ? 0x8000u : 0u);
    ASSERT_EQ(f32_to_bf16(value), wanted) << std::hexfloat << value;
  }
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Dtype, RoundingToF16IsToNearestEvenAndOverflowsToInf) {
  std::mt19937 rng(2);
  const auto decode = [](uint32_t code) -> double {
    return code == 0x7c00 ? 65536.0 : f16_to_f32(static_cast<uint16_t>(code));
  };
  std::uniform_int_distribution<int> exponent(-28, 16);
  for (int i = 0; i < 200000; ++i) {
    float value = std::ldexp(std::uniform_real_distribution<float>(1.0f, 2.0f)(rng), exponent(rng));
    if (i % 2 == 0) {
      const auto code = static_cast<uint16_t>(rng() % 0x7bff);
      value = static_cast<float>((decode(code) + decode(code + 1u)) / 2);
    }
    const uint32_t wanted = value >= 65536.0f ? 0x7c00u : nearest_code(value, 0x7c01, decode);
    ASSERT_EQ(f32_to_f16(value), wanted) << std::hexfloat << value;
    ASSERT_EQ(f32_to_f16(-value), wanted | 0x8000u);
  }
  EXPECT_EQ(f32_to_f16(INFINITY), 0x7c00);
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(NAN))));
}

TEST(Dtype, RoundingToE4M3IsToNearestEvenAndSaturates) {
  std::mt19937 rng(3);
  const auto decode = [](uint32_t code) -> double {
    return e4m3_to_f32(static_cast<uint8_t>(code));
  };
  std::uniform_int_distribution<int> exponent(-14, 9);
  for (int i = 0; i < 200000; ++i) {
    float value = std::ldexp(std::uniform_real_distribution<float>(1.0f, 2.0f)(rng), exponent(rng));
    if (i % 2 == 0) {
      const auto code = static_cast<uint8_t>(rng() % 0x7e);
      value = static_cast<float>((decode(code) + decode(code + 1u)) / 2);
    }
    const uint32_t wanted = value >= 448.0f ? 0x7eu : nearest_code(value, 0x7f, decode);
    ASSERT_EQ(f32_to_e4m3_saturate(value), wanted) << std::hexfloat << value;
    ASSERT_EQ(f32_to_e4m3_saturate(-value), wanted | 0x80u);
  }
  EXPECT_EQ(f32_to_e4m3_saturate(INFINITY), 0x7e);
  EXPECT_EQ(f32_to_e4m3_saturate(-INFINITY), 0xfe);
  EXPECT_EQ(f32_to_e4m3_saturate(NAN), 0x7f);
  EXPECT_EQ(f32_to_e4m3_saturate(-0.0f), 0x80);
}

}  // namespace
}  // namespace warproll
