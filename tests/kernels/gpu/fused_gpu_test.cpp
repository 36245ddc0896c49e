// Kernels that do what several kernels do, bit for bit against those: a norm as the prologue of what
// reads it (partials: moe_gpu_test.cpp), and whole layers of a decode step.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "gpu_support.h"
#include "kernels/bench/step_layer.h"
#include "kernels/cuda/graph.h"
#include "kernels/dtype.h"
#include "kernels/step/add_rmsnorm.h"
#include "kernels/step/stream_linear.h"

namespace warproll {
namespace {

using namespace testing;  // gpu_support.h

constexpr int32_t kHidden = kResidualNormHidden;

size_t count_of(int64_t a, int64_t b = 1, int64_t c = 1) { return static_cast<size_t>(a * b * c); }

template <typename T>
DeviceBuffer<T> poisoned(size_t size) {
  DeviceBuffer<T> buffer(size);
  WARPROLL_CUDA_CHECK(cudaMemset(buffer.data(), 0xff, size * sizeof(T)));
  return buffer;
}

DeviceBuffer<uint16_t> normal(size_t size, float sigma, uint64_t seed) {
  DeviceBuffer<uint16_t> buffer(size);
  fill_normal(buffer.data(), static_cast<int64_t>(size), seed, sigma, nullptr);
  return buffer;
}

template <typename T>
std::vector<T> read(const DeviceBuffer<T>& buffer) {
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  return buffer.to_host();
}

// A residual stream of T tokens, and what add_rmsnorm makes of it.
struct Stream {
  int32_t tokens;
  bool adds;
  DeviceBuffer<uint16_t> hidden, addend, weight, after, normed, tile;
  DeviceBuffer<float> scales;

  // sigma: of the norm's weight; large ones make values beyond F16.
  Stream(int32_t count, bool with_addend, float sigma, uint64_t seed)
      : tokens(count),
        adds(with_addend),
        hidden(normal(count_of(count, kHidden), 3.0f, seed)),
        addend(normal(count_of(count, kHidden), 1.0f, seed + 1)),
        weight(normal(kHidden, sigma, seed + 2)),
        after(hidden.to_host()),
        normed(poisoned<uint16_t>(hidden.size())),
        tile(poisoned<uint16_t>(hidden.size())),
        scales(poisoned<float>(static_cast<size_t>(count))) {
    AddRmsNormParams p;
    p.hidden = after.data();
    p.addend = adds ? addend.data() : nullptr;
    p.weight = reinterpret_cast<const std::byte*>(weight.data());
    p.normed = normed.data();
    p.normed_tile = {tile.data(), scales.data()};
    p.num_tokens = tokens;
    p.hidden_size = kHidden;
    add_rmsnorm(p, nullptr);
    WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  }
  [[nodiscard]] ResidualNorm norm(uint16_t* hidden_out) const {
    ResidualNorm n;
    n.hidden = hidden.data();
    n.addend = adds ? addend.data() : nullptr;
    n.hidden_out = hidden_out;
    n.weight = reinterpret_cast<const std::byte*>(weight.data());
    return n;
  }
};

TEST(FusedGpu, AStreamLinearThatNormsHasTheBitsOfTwoKernels) {
  SKIP_WITHOUT_GPU();
  for (const WeightFormat format :
       {WeightFormat::kBf16, WeightFormat::kMxfp8, WeightFormat::kFp8Block}) {
    for (const int32_t rows : {128, 5120, 40000}) {
      const RandomExperts weights(ExpertShape{rows, kHidden, 1, 1}, format, 31, false);
      for (const int32_t tokens : {1, 2}) {
        for (const bool adds : {true, false}) {
          for (const float sigma : {1.0f, 3e4f}) {
            SCOPED_TRACE("rows " + std::to_string(rows) + ", T " + std::to_string(tokens));
            const Stream stream(tokens, adds, sigma, 32);
            StreamLinearParams p;
            p.weight = weights.down_tiles;
            p.num_tokens = tokens;
            ASSERT_TRUE(stream_linear_can_norm(tokens, p.weight));
            const size_t count = count_of(tokens, rows);
            const auto y = poisoned<uint16_t>(count), want_y = poisoned<uint16_t>(count);
            const auto f32 = poisoned<float>(count), want_f32 = poisoned<float>(count);
            const auto hidden_out = poisoned<uint16_t>(stream.hidden.size());
            p.x = {stream.tile.data(), stream.scales.data()};
            p.y = want_y.data();
            stream_linear(p, nullptr);
            p.y_f32 = want_f32.data();
            stream_linear(p, nullptr);
            p.x = {};
            p.norm = stream.norm(nullptr);
            p.y_f32 = f32.data();
            stream_linear(p, nullptr);
            p.norm = stream.norm(hidden_out.data());
            p.y_f32 = nullptr;
            p.y = y.data();
            stream_linear(p, nullptr);
            ASSERT_EQ(read(y), read(want_y));
            ASSERT_EQ(read(f32), read(want_f32));
            ASSERT_EQ(read(hidden_out), read(stream.after));
          }
        }
      }
    }
  }
}

// Whole layers in a graph, where every kernel may start before the one it reads from has ended.
TEST(FusedGpu, AReplayedChainHasTheBitsOfKernelsOneAfterTheOther) {
  SKIP_WITHOUT_GPU();
  StepLayers layers(3, WeightFormat::kBf16, 64, 1400);
  for (const int32_t tokens : {1, 2, 3, 8, 17, 64}) {
    SCOPED_TRACE("T " + std::to_string(tokens));
    layers.restart(tokens);
    layers.refill();
    for (size_t i = 0; i < layers.size(); ++i) {
      for (const StepLayers::Op& op : StepLayers::ops()) {
        (layers.*op.run)(i, nullptr);
        WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
      }
    }
    const StepLayers::State want = layers.state();
    layers.restart(tokens);
    const CudaGraph graph = CudaGraph::capture([&](cudaStream_t s) { layers.chain(s); });
    const CudaStream stream;
    for (int i = 0; i < 5; ++i) {
      layers.refill();
      graph.launch(stream.get());
      WARPROLL_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
      const StepLayers::State got = layers.state();
      EXPECT_TRUE(got.hidden == want.hidden) << "replay " << i;
      EXPECT_TRUE(got.qkv == want.qkv) << "replay " << i;
      EXPECT_TRUE(got.attention == want.attention) << "replay " << i;
      EXPECT_TRUE(got.o == want.o) << "replay " << i;
      EXPECT_TRUE(got.logits == want.logits) << "replay " << i;
    }
  }
}

TEST(FusedGpu, NormsThatDoNotFitAreRefused) {
  const auto* memory = reinterpret_cast<uint16_t*>(uintptr_t{256});  // never read
  StreamLinearParams p;
  p.norm.hidden = memory;
  p.norm.weight = reinterpret_cast<const std::byte*>(memory);
  p.y = const_cast<uint16_t*>(memory);
  p.weight = {TileFormat::kF16, reinterpret_cast<const std::byte*>(memory), 1, 4, kHidden};
  const auto refused = [&](int32_t tokens, int32_t cols) {
    p.num_tokens = tokens;
    p.weight.cols = cols;
    EXPECT_THROW(stream_linear(p, nullptr), std::invalid_argument);
  };
  refused(3, kHidden);
  refused(1, 1024);
  p.norm.hidden_out = const_cast<uint16_t*>(memory);  // is hidden
  refused(1, kHidden);
}

}  // namespace
}  // namespace warproll
