#include "linear_support.h"

#include <cmath>
#include <cstring>

namespace warproll::testing {

std::vector<double> values_of(const TileMatrix& m) {
  const auto bytes = from_device<uint8_t>(m.data, m.bytes());
  const auto f16 = [](uint16_t bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const double v =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    return (bits & 0x8000) != 0 ? -v : v;
  };
  const auto u16 = [&](size_t at) { return static_cast<uint16_t>(bytes[at] | bytes[at + 1] << 8); };
  const int32_t rows = m.num_tiles * kTileRows;
  std::vector<double> values(static_cast<size_t>(rows) * static_cast<size_t>(m.cols));
  const auto record_bytes = static_cast<size_t>(m.record_bytes());
  const auto block_bytes = static_cast<size_t>(tile_block_bytes(m.format));
  const size_t scales = static_cast<size_t>(m.num_tiles) * record_bytes;
  for (int32_t r = 0; r < rows; ++r) {
    const auto tile = static_cast<size_t>(r / kTileRows), row = static_cast<size_t>(r % kTileRows);
    const double row_scale = bf16_to_f32(u16(scales + tile * kRowScaleBytes + row * 2));
    for (int32_t c = 0; c < m.cols; ++c) {
      const size_t block = tile * record_bytes + static_cast<size_t>(c / 32) * block_bytes;
      const size_t g = row % 8, high = row / 8;
      const auto in_block = static_cast<size_t>(c % 32);
      const size_t t = in_block % 8 / 2, lane = 4 * g + t, odd = in_block % 2;
      const size_t word = in_block / 8;  // 0 .. 3: 2t, 2t + 8, 2t + 16, 2t + 24
      double v;
      if (m.format == TileFormat::kF16) {
        v = f16(u16(block + word / 2 * 512 + lane * 16 + (word % 2 * 2 + high) * 4 + odd * 2));
      } else {
        v = e4m3_to_f32(bytes[block + lane * 16 + high * 8 + word * 2 + odd]);
        if (m.format == TileFormat::kMxfp8) {
          v *= f16(static_cast<uint16_t>(bytes[block + 512 + g * 2 + high] << 8));
        } else {
          float scale;
          std::memcpy(&scale, &bytes[block + 512 + high * 4], 4);
          v *= scale;
        }
      }
      values[static_cast<size_t>(r) * static_cast<size_t>(m.cols) + static_cast<size_t>(c)] =
          v * row_scale;
    }
  }
  return values;
}

std::vector<uint16_t> random_x(int32_t tokens, int32_t cols, uint64_t seed, float sigma) {
  DeviceBuffer<uint16_t> x(static_cast<size_t>(tokens) * static_cast<size_t>(cols));
  fill_normal(x.data(), static_cast<int64_t>(x.size()), seed, sigma, nullptr);
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  return x.to_host();
}

void expect_near_f64(const std::vector<double>& w, const std::vector<uint16_t>& x, int32_t rows,
                     int32_t cols, const std::vector<float>& y) {
  const auto tokens = static_cast<int32_t>(x.size() / static_cast<size_t>(cols));
  ASSERT_EQ(y.size(), static_cast<size_t>(tokens) * static_cast<size_t>(rows));
  for (int32_t t = 0; t < tokens; t += 1 + tokens / 4) {
    for (int32_t r = 0; r < rows; r += 1 + rows / 250) {
      double want = 0, size = 0;
      for (int32_t c = 0; c < cols; ++c) {
        const double product = w[static_cast<size_t>(r) * static_cast<size_t>(cols) + c] *
                               bf16_to_f32(x[static_cast<size_t>(t) * cols + c]);
        want += product;
        size += std::fabs(product);
      }
      ASSERT_NEAR(y[static_cast<size_t>(t) * rows + r], want, 2e-6 * size)
          << "token " << t << " of " << tokens << ", row " << r << " of " << rows << " x " << cols;
    }
  }
}

}  // namespace warproll::testing
