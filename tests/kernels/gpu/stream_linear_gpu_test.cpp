// stream_linear against F64 on the host, its independence of the batch, and what it refuses.
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "kernels/moe/pack.h"
#include "kernels/step/stream_linear.h"
#include "linear_support.h"

namespace warproll {
namespace {

using namespace testing;  // linear_support.h

constexpr int kCanaries = 32;

// y before rounding, NaN-poisoned before, with canaries around it. bf16: x as it is, not as tiles.
std::vector<float> run(const TileMatrix& weight, const std::vector<uint16_t>& x, bool bf16,
                       cudaStream_t stream = nullptr) {
  const auto cols = static_cast<size_t>(weight.cols);
  const size_t tokens = x.size() / cols;
  const size_t count = tokens * static_cast<size_t>(weight.num_tiles) * kTileRows;
  DeviceBuffer<uint16_t> device_x(x), tile(x.size());
  DeviceBuffer<float> scales(tokens), y(count + 2 * kCanaries);
  WARPROLL_CUDA_CHECK(cudaMemset(y.data(), 0xff, y.size() * 4));
  convert_activations(
      {device_x.data(), {tile.data(), scales.data()}, static_cast<int32_t>(tokens), weight.cols},
      nullptr);
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  StreamLinearParams p;
  if (bf16) {
    p.x_bf16 = device_x.data();
  } else {
    p.x = {tile.data(), scales.data()};
  }
  p.weight = weight;
  p.y_f32 = y.data() + kCanaries;
  p.num_tokens = static_cast<int32_t>(tokens);
  stream_linear(p, stream);
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  const std::vector<float> all = y.to_host();
  for (size_t i = 0; i < kCanaries; ++i) {
    EXPECT_TRUE(std::isnan(all[i]) && std::isnan(all[all.size() - 1 - i])) << "written beside y";
  }
  return {all.begin() + kCanaries, all.end() - kCanaries};
}

constexpr WeightFormat kFormats[] = {WeightFormat::kBf16, WeightFormat::kMxfp8,
                                     WeightFormat::kFp8Block};

TEST(StreamLinearGpu, IsWithinItsToleranceOfF64) {
  SKIP_WITHOUT_GPU();
  // Columns of both shapes that keep activations in registers, and others; more tiles than CTAs.
  for (const auto& [rows, cols] :
       {std::pair{2400, 2048}, {352, 4096}, {32, 32}, {512, 768}, {64, 4128}, {2208, 96}}) {
    for (const WeightFormat format : kFormats) {
      const RandomExperts experts({rows, cols, 1, 1}, format, 61, /*keep_rows=*/false);
      const std::vector<double> w = values_of(experts.down_tiles);
      for (const int32_t tokens : {1, 3, 8, 9, 32, 33, 64, 65, 200}) {
        const auto x = random_x(tokens, cols, 62);
        for (const bool bf16 : {false, true}) {
          SCOPED_TRACE(::testing::PrintToString(std::tuple(rows, cols, int(format), tokens, bf16)));
          ASSERT_NO_FATAL_FAILURE(
              expect_near_f64(w, x, rows, cols, run(experts.down_tiles, x, bf16)));
        }
      }
    }
  }
}

TEST(StreamLinearGpu, LargeActivationsDoNotOverflow) {
  SKIP_WITHOUT_GPU();
  for (const int32_t cols : {768, 4096}) {
    const RandomExperts experts({160, cols, 1, 1}, WeightFormat::kBf16, 63, /*keep_rows=*/false);
    const std::vector<double> w = values_of(experts.down_tiles);
    const auto x = random_x(20, cols, 64, 3e6f);
    for (const bool bf16 : {false, true}) {
      ASSERT_NO_FATAL_FAILURE(expect_near_f64(w, x, 160, cols, run(experts.down_tiles, x, bf16)));
    }
  }
}

TEST(StreamLinearGpu, ATokensBitsDoNotDependOnItsBatch) {
  SKIP_WITHOUT_GPU();
  for (const auto& [rows, cols] :
       {std::pair{5120, 2048}, {16416, 2048}, {2048, 4096}, {2048, 1024}}) {
    for (const WeightFormat format : kFormats) {
      const RandomExperts experts({rows, cols, 1, 1}, format, 65, /*keep_rows=*/false);
      const auto x = random_x(600, cols, 66);
      for (const bool bf16 : {false, true}) {
        const auto whole = run(experts.down_tiles, x, bf16);
        for (const auto& [first, count] : {std::pair{0, 1},
                                           {599, 1},
                                           {100, 7},
                                           {250, 64},
                                           {1, 300},
                                           {77, 20},
                                           {31, 8},
                                           {400, 12}}) {
          const std::vector<uint16_t> some(x.begin() + int64_t{first} * cols,
                                           x.begin() + int64_t{first + count} * cols);
          const auto part = run(experts.down_tiles, some, bf16);
          ASSERT_EQ(std::memcmp(part.data(), whole.data() + size_t(rows) * first, part.size() * 4),
                    0)
              << count << " tokens from " << first << ", " << rows << " x " << cols << ", format "
              << int(format) << ", bf16 " << bf16;
        }
      }
    }
  }
}

TEST(StreamLinearGpu, AGraphOfManyGivesTheSameBitsEveryTime) {
  SKIP_WITHOUT_GPU();
  const RandomExperts up({4096, 2048, 1, 1}, WeightFormat::kBf16, 67, false);
  const RandomExperts down({2048, 4096, 1, 1}, WeightFormat::kMxfp8, 68, false);
  for (const int32_t tokens : {1, 8, 20, 64, 100}) {
    expect_equal_replays<StreamLinearParams>(up.down_tiles, down.down_tiles,
                                             random_x(tokens, 2048, 69), tokens, stream_linear);
  }
}

// What CTAs of a cluster send each other must not come when the addressee has gone, which ends the process:
// alone they leave in good order, beside kernels that write much one may come late.
TEST(StreamLinearGpu, ClustersEndInOrderBesideOtherKernels) {
  SKIP_WITHOUT_GPU();
  constexpr int kLaunches = 100, kReplays = 100;
  const RandomExperts narrow({2048, 4096, 1, 1}, WeightFormat::kBf16, 70, false);
  const RandomExperts wide({4096, 2048, 1, 1}, WeightFormat::kBf16, 71, false);
  const RandomExperts busy({2048, 768, 64, 1}, WeightFormat::kBf16, 72, /*keep_rows=*/true);
  const int32_t most = 32;
  const DeviceBuffer<uint16_t> x(random_x(most, 4096, 73));
  DeviceBuffer<uint16_t> tile(x.size()), y(size_t{4096} * most);
  DeviceBuffer<float> scales(static_cast<size_t>(most));
  const size_t bytes = busy.gate_up_tiles.bytes();
  DeviceBuffer<std::byte> packed(bytes), copied(bytes);
  convert_activations({x.data(), {tile.data(), scales.data()}, most, 2048}, nullptr);
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  const CudaGraph linears = CudaGraph::capture([&](cudaStream_t s) {
    for (int i = 0; i < kLaunches; ++i) {
      for (const int32_t tokens : {most / 2, most}) {  // clusters of two and of four
        StreamLinearParams p;
        p.y = y.data();
        p.num_tokens = tokens;
        p.weight = narrow.down_tiles;
        p.x_bf16 = x.data();
        stream_linear(p, s);
        p.x_bf16 = nullptr;
        p.x = {tile.data(), scales.data()};
        p.weight = wide.down_tiles;
        stream_linear(p, s);
      }
    }
  });
  const CudaStream stream;
  const CudaStream others[] = {CudaStream(CudaStream::Priority::kLow),
                               CudaStream(CudaStream::Priority::kLow)};
  for (int i = 0; i < kReplays; ++i) {
    linears.launch(stream.get());
    for (int k = 0; k < 10; ++k) {
      pack_gate_up(busy.gate, busy.up, packed.data(), others[0].get());
      WARPROLL_CUDA_CHECK(cudaMemcpyAsync(copied.data(), busy.gate_up_tiles.data, bytes,
                                          cudaMemcpyDeviceToDevice, others[1].get()));
    }
    WARPROLL_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
  }
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
}

TEST(StreamLinearGpu, WhatItCannotDoIsNamed) {
  const auto message = [](const StreamLinearParams& p) -> std::string {
    try {
      stream_linear(p, nullptr);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  StreamLinearParams p;
  p.weight = {TileFormat::kF16, nullptr, 1, 2, 48};
  p.num_tokens = 3;
  EXPECT_NE(message(p).find("columns a multiple of 32"), std::string::npos);
  p.weight.cols = 64;
  EXPECT_NE(message(p).find("wanted one of x with its scales, x_bf16 and norm"), std::string::npos);
  p.num_tokens = 0;
  EXPECT_EQ(message(p), "nothing thrown");
}

}  // namespace
}  // namespace warproll
