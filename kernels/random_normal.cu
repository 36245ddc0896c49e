// random_normal: grid-stride, block 256 threads, a thread makes four values.
#include "kernels/random_normal.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <string>

#include "kernels/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/philox.h"

namespace warproll {
namespace {

constexpr int kThreads = 256;

// Two of N(0, 1) from 64 bits; the first argument of log is in (0, 1].
__device__ float2 two_normals(uint32_t a, uint32_t b) {
  const float u = (static_cast<float>(a >> 8) + 1.0f) * 0x1p-24f;
  const float v = static_cast<float>(b >> 8) * 0x1p-24f;
  const float radius = sqrtf(-2.0f * logf(u));
  float sine, cosine;
  sincospif(2.0f * v, &sine, &cosine);
  return {radius * cosine, radius * sine};
}

__global__ void __launch_bounds__(kThreads) random_normal_kernel(RandomNormalParams p) {
  const PhiloxKey key = {static_cast<uint32_t>(p.seed), static_cast<uint32_t>(p.seed >> 32)};
  const uint64_t step = uint64_t{gridDim.x} * kThreads;
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i * 4 < p.count; i += step) {
    const uint64_t four = p.first_index / 4 + i;
    const PhiloxCounter words = philox4x32_10(
        {static_cast<uint32_t>(four), static_cast<uint32_t>(four >> 32),
         static_cast<uint32_t>(p.stream_id), static_cast<uint32_t>(p.stream_id >> 32)},
        key);
    const float2 low = two_normals(words[0], words[1]), high = two_normals(words[2], words[3]);
    const float values[] = {low.x, low.y, high.x, high.y};
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      if (i * 4 + v >= p.count) break;
      reinterpret_cast<__nv_bfloat16*>(p.out)[i * 4 + v] =
          __float2bfloat16_rn(p.mean + p.sigma * values[v]);
    }
  }
}

}  // namespace

void random_normal(const RandomNormalParams& p, cudaStream_t stream) {
  check_argument(p.first_index % 4 == 0 && (p.out != nullptr || p.count == 0), [&] {
    return "random_normal: first_index is " + std::to_string(p.first_index) +
           ", wanted a multiple of 4, and an output";
  });
  if (p.count == 0) return;
  const uint64_t ctas = std::min<uint64_t>((p.count / 4 + kThreads) / kThreads, 4096);
  LaunchConfig config(dim3(static_cast<unsigned>(ctas)), kThreads, 0, stream);
  config.run(random_normal_kernel, p);
}

}  // namespace warproll
