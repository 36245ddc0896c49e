#include "op_support.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace warproll::testing {
namespace {

constexpr int32_t kBlockRows = 5, kBlockCols = 24;

template <typename T>
void append(std::vector<std::byte>& bytes, T value) {
  const auto* first = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), first, first + sizeof(T));
}

// The definitions of the formats, with ldexp, not the code under test.
double e4m3_value(int bits) {
  const int exponent = (bits >> 3) & 15;
  const int mantissa = bits & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}
double f16_value(int bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}
double bf16_value(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value = 0.0f;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}
uint16_t bf16_cut(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

// One element's bits, and its value before a scale.
double add_element(TestFormat format, std::vector<std::byte>& data, std::mt19937& rng) {
  std::normal_distribution<float> normal(0.0f, 0.5f);
  if (format == TestFormat::kF32) {
    const float value = normal(rng);
    append(data, value);
    return value;
  }
  if (format == TestFormat::kBf16) {
    const uint16_t bits = bf16_cut(normal(rng));
    append(data, bits);
    return bf16_value(bits);
  }
  if (format == TestFormat::kF16) {
    // Exponents up to 2^0: subnormals included, no inf or NaN.
    const auto bits = static_cast<uint16_t>((rng() % (16u << 10)) | (rng() % 2 << 15));
    append(data, bits);
    return f16_value(bits);
  }
  uint32_t bits = rng() % 256;
  if ((bits & 0x7f) == 0x7f) bits -= 1;  // no NaN
  append(data, static_cast<uint8_t>(bits));
  return e4m3_value(static_cast<int>(bits));
}

double add_scale(TestFormat format, std::vector<std::byte>& scales, std::mt19937& rng) {
  if (format == TestFormat::kMxfp8) {
    const auto bits = static_cast<uint8_t>(114 + rng() % 8);
    append(scales, bits);
    return std::ldexp(1.0, bits - 127);
  }
  const float scale = std::uniform_real_distribution<float>(0.001f, 0.01f)(rng);
  if (format == TestFormat::kFp8BlockF32) {
    append(scales, scale);
    return scale;
  }
  append(scales, bf16_cut(scale));
  return bf16_value(bf16_cut(scale));
}

WeightFormat weight_format(TestFormat format) {
  switch (format) {
    case TestFormat::kF32:
      return WeightFormat::kF32;
    case TestFormat::kF16:
      return WeightFormat::kF16;
    case TestFormat::kBf16:
      return WeightFormat::kBf16;
    case TestFormat::kMxfp8:
      return WeightFormat::kMxfp8;
    default:
      return WeightFormat::kFp8Block;
  }
}

}  // namespace

std::vector<float> random_floats(int64_t count, std::mt19937& rng, float deviation) {
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(rng);
  return values;
}

const char* name_of(TestFormat format) {
  switch (format) {
    case TestFormat::kF32:
      return "F32";
    case TestFormat::kF16:
      return "F16";
    case TestFormat::kBf16:
      return "BF16";
    case TestFormat::kMxfp8:
      return "MXFP8";
    case TestFormat::kFp8BlockF32:
      return "FP8 block, F32 scales";
    default:
      return "FP8 block, BF16 scales";
  }
}

TestWeight random_weight(TestFormat format, int32_t num_matrices, int32_t rows, int32_t cols,
                         std::mt19937& rng) {
  TestWeight weight;
  WeightView& view = weight.view;
  view.format = weight_format(format);
  view.num_matrices = num_matrices;
  view.rows = rows;
  view.cols = cols;
  const bool scaled = view.format == WeightFormat::kMxfp8 || view.format == WeightFormat::kFp8Block;
  if (view.format == WeightFormat::kFp8Block) {
    view.block_rows = kBlockRows;
    view.block_cols = kBlockCols;
    view.scale_dtype = format == TestFormat::kFp8BlockF32 ? Dtype::kF32 : Dtype::kBf16;
  }
  const int32_t scale_rows = (rows + view.block_rows - 1) / view.block_rows;
  const int32_t scale_cols = (cols + view.block_cols - 1) / view.block_cols;
  for (int32_t m = 0; m < num_matrices; ++m) {
    std::vector<double> scales;
    for (int32_t i = 0; scaled && i < scale_rows * scale_cols; ++i) {
      scales.push_back(add_scale(format, weight.scales, rng));
    }
    for (int32_t r = 0; r < rows; ++r) {
      for (int32_t c = 0; c < cols; ++c) {
        const double element = add_element(format, weight.data, rng);
        const size_t block =
            static_cast<size_t>(r / view.block_rows * scale_cols + c / view.block_cols);
        weight.values.push_back(scaled ? element * scales[block] : element);
      }
    }
  }
  const auto matrices = static_cast<uint64_t>(std::max(num_matrices, 1));
  view.matrix_stride_bytes = weight.data.size() / matrices;
  view.scale_stride_bytes = weight.scales.size() / matrices;
  view.data = weight.data.data();
  view.scales = scaled ? weight.scales.data() : nullptr;
  return weight;
}

std::vector<float> poisoned(int64_t count) {
  return std::vector<float>(static_cast<size_t>(count), std::numeric_limits<float>::quiet_NaN());
}

}  // namespace warproll::testing
