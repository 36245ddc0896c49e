// What the GPU tests of the linear ops share. Thread: one test. Errors: CudaError.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "gpu_support.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/graph.h"
#include "kernels/dtype.h"
#include "kernels/moe/tiles.h"
#include "kernels/moe/warp_decode.h"

namespace warproll::testing {

// Tiles of one matrix, dequantised on the host: [rows, cols].
std::vector<double> values_of(const TileMatrix& m);

// BF16 [tokens, cols].
std::vector<uint16_t> random_x(int32_t tokens, int32_t cols, uint64_t seed, float sigma = 1.0f);

// y [tokens, rows] is x w^T within 2e-6 * sum |w x|, for some of the tokens and rows.
void expect_near_f64(const std::vector<double>& w, const std::vector<uint16_t>& x, int32_t rows,
                     int32_t cols, const std::vector<float>& y);

// A chain of ten up [4096, 2048] and down [2048, 4096] in a graph, each started before the last has ended:
// a hundred replays leave the same finite bits. Params: of `op`, stream_linear or cluster_linear.
template <class Params>
void expect_equal_replays(const TileMatrix& up, const TileMatrix& down,
                          const std::vector<uint16_t>& x_bits, int32_t tokens,
                          void (*op)(const Params&, cudaStream_t)) {
  DeviceBuffer<uint16_t> x(x_bits), tile(x.size()), middle(2 * x.size()), y(x.size());
  DeviceBuffer<float> scales(static_cast<size_t>(tokens));
  const CudaGraph graph = CudaGraph::capture([&](cudaStream_t s) {
    for (int i = 0; i < 10; ++i) {
      convert_activations({(i == 0 ? x : y).data(), {tile.data(), scales.data()}, tokens, 2048}, s);
      Params p;
      p.x = {tile.data(), scales.data()};
      p.weight = up;
      p.y = middle.data();
      p.num_tokens = tokens;
      op(p, s);
      p.x = {};
      p.x_bf16 = middle.data();
      p.weight = down;
      p.y = y.data();
      op(p, s);
    }
  });
  const CudaStream stream;
  std::vector<uint16_t> first;
  for (int i = 0; i < 100; ++i) {
    WARPROLL_CUDA_CHECK(cudaMemsetAsync(y.data(), 0xff, y.size() * 2, stream.get()));
    graph.launch(stream.get());
    WARPROLL_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
    const auto bits = y.to_host();
    if (i == 0) {
      first = bits;
      for (const uint16_t v : bits) ASSERT_TRUE(std::isfinite(bf16_to_f32(v)));
    }
    ASSERT_EQ(bits, first) << "replay " << i << ", T " << tokens;
  }
}

}  // namespace warproll::testing
