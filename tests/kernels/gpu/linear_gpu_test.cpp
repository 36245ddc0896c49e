// step_linear against F64 on the host, and its independence of the batch.
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "gpu_support.h"
#include "kernels/step/linear.h"

namespace warproll {
namespace {

using namespace testing;  // gpu_support.h

// [rows, cols] of a device view with one matrix, dequantised here.
std::vector<double> values_of(const WeightView& w) {
  const auto count = static_cast<size_t>(w.rows) * static_cast<size_t>(w.cols);
  std::vector<double> values(count);
  if (w.format == WeightFormat::kBf16) {
    const auto bits = from_device<uint16_t>(w.data, count);
    for (size_t i = 0; i < count; ++i) values[i] = bf16_to_f32(bits[i]);
    return values;
  }
  const auto bits = from_device<uint8_t>(w.data, count);
  const bool mxfp8 = w.format == WeightFormat::kMxfp8;
  const auto scales =
      mxfp8 ? from_device<uint8_t>(w.scales, w.scale_stride_bytes) : std::vector<uint8_t>();
  const auto floats =
      mxfp8 ? std::vector<float>() : from_device<float>(w.scales, w.scale_stride_bytes / 4);
  const int32_t groups = (w.cols + w.block_cols - 1) / w.block_cols;
  for (size_t i = 0; i < count; ++i) {
    const auto row = static_cast<int32_t>(i / static_cast<size_t>(w.cols));
    const auto col = static_cast<int32_t>(i % static_cast<size_t>(w.cols));
    const double scale =
        mxfp8 ? std::ldexp(1.0, scales[i / 32] - 127)
              : floats[static_cast<size_t>(row / w.block_rows * groups + col / w.block_cols)];
    values[i] = double{e4m3_to_f32(bits[i])} * scale;
  }
  return values;
}

// y before rounding, NaN-poisoned before.
std::vector<float> run(const TileMatrix& weight, const std::vector<uint16_t>& x) {
  const auto tokens = static_cast<int32_t>(x.size() / static_cast<size_t>(weight.cols));
  DeviceBuffer<uint16_t> device_x(x);
  DeviceBuffer<std::byte> workspace(step_linear_workspace_bytes(tokens, weight.cols));
  DeviceBuffer<float> y(static_cast<size_t>(tokens) * static_cast<size_t>(weight.num_tiles) *
                        kTileRows);
  if (y.size() > 0) WARPROLL_CUDA_CHECK(cudaMemset(y.data(), 0xff, y.size() * 4));
  step_linear({.x = device_x.data(),
               .weight = weight,
               .workspace = workspace.data(),
               .workspace_bytes = workspace.size(),
               .y_f32 = y.data(),
               .num_tokens = tokens},
              nullptr);
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  return y.to_host();
}

std::vector<uint16_t> random_x(int32_t tokens, int32_t cols, uint64_t seed) {
  DeviceBuffer<uint16_t> x(static_cast<size_t>(tokens) * static_cast<size_t>(cols));
  fill_normal(x.data(), static_cast<int64_t>(x.size()), seed, 1.0f, nullptr);
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  return x.to_host();
}

TEST(LinearGpu, IsWithinItsToleranceOfF64) {
  SKIP_WITHOUT_GPU();
  for (const ExpertShape& shape :
       {ExpertShape{512, 768, 1, 1}, {32, 32, 1, 1}, {288, 2048, 1, 1}}) {
    for (const WeightFormat format :
         {WeightFormat::kBf16, WeightFormat::kMxfp8, WeightFormat::kFp8Block}) {
      const RandomExperts experts(shape, format, 51, /*keep_rows=*/true);
      const int32_t rows = shape.hidden_size, cols = shape.intermediate_size;
      const std::vector<double> w = values_of(experts.down);
      for (const int32_t tokens : {0, 1, 2, 33, 257, 700}) {
        const auto x = random_x(tokens, cols, 52);
        const auto y = run(experts.down_tiles, x);
        ASSERT_EQ(y.size(), static_cast<size_t>(tokens) * static_cast<size_t>(rows));
        for (int32_t t = 0; t < tokens; t += 1 + tokens / 9) {
          for (int32_t r = 0; r < rows; ++r) {
            double want = 0, size = 0;
            for (int32_t c = 0; c < cols; ++c) {
              const double product = w[static_cast<size_t>(r) * cols + c] *
                                     bf16_to_f32(x[static_cast<size_t>(t) * cols + c]);
              want += product;
              size += std::fabs(product);
            }
            ASSERT_NEAR(y[static_cast<size_t>(t) * rows + r], want, 2e-6 * size)
                << "token " << t << " of " << tokens << ", row " << r;
          }
        }
      }
    }
  }
}

TEST(LinearGpu, ATokensBitsDoNotDependOnItsBatch) {
  SKIP_WITHOUT_GPU();
  const ExpertShape shape{5120, 2048, 1, 1};
  const RandomExperts experts(shape, WeightFormat::kBf16, 53, /*keep_rows=*/false);
  const auto x = random_x(600, 2048, 54);
  const auto whole = run(experts.down_tiles, x);
  for (const auto& [first, count] : {std::pair{0, 1}, {599, 1}, {100, 7}, {250, 64}, {1, 300}}) {
    const auto part =
        run(experts.down_tiles, {x.begin() + first * 2048, x.begin() + (first + count) * 2048});
    ASSERT_EQ(std::memcmp(part.data(), whole.data() + size_t{5120} * first, part.size() * 4), 0)
        << count << " tokens from " << first;
  }
}

TEST(LinearGpu, ASmallWorkspaceIsNamed) {
  SKIP_WITHOUT_GPU();
  StepLinearParams p;
  p.weight = {TileFormat::kF16, nullptr, 1, 2, 64};
  p.num_tokens = 3;
  try {
    step_linear(p, nullptr);
    FAIL() << "nothing thrown";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("the workspace has 0 bytes, wanted "),
              std::string::npos);
  }
}

}  // namespace
}  // namespace warproll
