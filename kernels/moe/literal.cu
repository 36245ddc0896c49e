// Both kernels: block 256 threads = 8 warps, one output value a warp.
//   gate_up: grid (I / 8, K, T)    down: grid (H / 8, T)
#include "kernels/moe/literal.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>

#include "kernels/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/router.h"

namespace warproll {
namespace {

constexpr int kWarps = 8;

__device__ __forceinline__ uint4 load_weights(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

__device__ __forceinline__ float2 two_floats(uint32_t bf16x2) {
  return make_float2(__uint_as_float(bf16x2 << 16), __uint_as_float(bf16x2 & 0xffff0000u));
}

__device__ __forceinline__ float sum_of_warp(float v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  return v;
}

// Sixteen bytes of a weight row: its columns, scale and product with activations.
template <WeightFormat kFormat>
struct Granule;

template <>
struct Granule<WeightFormat::kBf16> {
  static constexpr int kCols = 8;
  static __device__ float scale(const std::byte*, int) { return 1.0f; }
  static __device__ void floats(uint4 w, float (&out)[kCols]) {
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = two_floats(words[i]);
      out[2 * i] = two.x;
      out[2 * i + 1] = two.y;
    }
  }
};

template <>
struct Granule<WeightFormat::kMxfp8> {
  static constexpr int kCols = 16;
  static __device__ float scale(const std::byte* row_scales, int granule) {
    return __uint_as_float(static_cast<uint32_t>(row_scales[granule / 2]) << 23);
  }
  static __device__ void floats(uint4 w, float (&out)[kCols]) {
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t low, high;
      ptx::e4m3x4_to_f16x2(words[i], low, high);
      const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&low));
      const float2 b = __half22float2(*reinterpret_cast<const __half2*>(&high));
      out[4 * i] = a.x, out[4 * i + 1] = a.y, out[4 * i + 2] = b.x, out[4 * i + 3] = b.y;
    }
  }
};

template <WeightFormat kFormat>
__device__ __forceinline__ float dot(uint4 weights, const uint16_t* x) {  // BF16 x
  float w[Granule<kFormat>::kCols];
  Granule<kFormat>::floats(weights, w);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < Granule<kFormat>::kCols / 8; ++i) {
    const uint4 v = reinterpret_cast<const uint4*>(x)[i];
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 two = two_floats(words[j]);
      sum = fmaf(w[8 * i + 2 * j], two.x, sum);
      sum = fmaf(w[8 * i + 2 * j + 1], two.y, sum);
    }
  }
  return sum;
}

template <WeightFormat kFormat>
__device__ __forceinline__ float dot(uint4 weights, const float* h) {
  float w[Granule<kFormat>::kCols];
  Granule<kFormat>::floats(weights, w);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < Granule<kFormat>::kCols / 4; ++i) {
    const float4 v = reinterpret_cast<const float4*>(h)[i];
    sum = fmaf(w[4 * i], v.x, sum);
    sum = fmaf(w[4 * i + 1], v.y, sum);
    sum = fmaf(w[4 * i + 2], v.z, sum);
    sum = fmaf(w[4 * i + 3], v.w, sum);
  }
  return sum;
}

struct Row {
  const uint4* data;
  const std::byte* scales;
};

__device__ __forceinline__ Row row_of(const WeightView& w, int expert, int row, int element_bytes) {
  const std::byte* data = w.data + static_cast<int64_t>(expert) * w.matrix_stride_bytes +
                          static_cast<int64_t>(row) * w.cols * element_bytes;
  const std::byte* scales = w.scales == nullptr
                                ? nullptr
                                : w.scales + static_cast<int64_t>(expert) * w.scale_stride_bytes +
                                      static_cast<int64_t>(row) * (w.cols / 32);
  return {reinterpret_cast<const uint4*>(data), scales};
}

template <WeightFormat kFormat>
constexpr int kElementBytes = kFormat == WeightFormat::kBf16 ? 2 : 1;

template <WeightFormat kFormat>
__global__ void __launch_bounds__(kWarps * 32)
    moe_gate_up_3d_batched(const __grid_constant__ LiteralMoeParams p) {
  constexpr int kAhead = 4;  // granules a lane loads before it multiplies
  ptx::wait_for_previous_kernel();
  ptx::allow_next_kernel();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int neuron = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int token = static_cast<int>(blockIdx.z);
  const int pair = token * p.top_k + static_cast<int>(blockIdx.y);
  const int expert = p.topk_ids[pair];
  if (neuron >= p.gate.rows || expert < 0 || expert >= p.gate.num_matrices) return;
  const Row gate = row_of(p.gate, expert, neuron, kElementBytes<kFormat>);
  const Row up = row_of(p.up, expert, neuron, kElementBytes<kFormat>);
  const uint16_t* x = p.x + static_cast<int64_t>(token) * p.gate.cols;
  const int granules = p.gate.cols / Granule<kFormat>::kCols;
  float g = 0.0f, u = 0.0f;
  for (int at = lane; at < granules; at += 32 * kAhead) {
    uint4 gs[kAhead] = {}, us[kAhead] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (at + 32 * i < granules) {
        gs[i] = load_weights(gate.data + at + 32 * i);
        us[i] = load_weights(up.data + at + 32 * i);
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int c = at + 32 * i;
      if (c < granules) {
        const uint16_t* xs = x + c * Granule<kFormat>::kCols;
        g = fmaf(Granule<kFormat>::scale(gate.scales, c), dot<kFormat>(gs[i], xs), g);
        u = fmaf(Granule<kFormat>::scale(up.scales, c), dot<kFormat>(us[i], xs), u);
      }
    }
  }
  g = sum_of_warp(g);
  u = sum_of_warp(u);
  if (lane == 0)
    p.h[static_cast<int64_t>(pair) * p.gate.rows + neuron] = g / (1.0f + __expf(-g)) * u;
}

template <WeightFormat kFormat>
__global__ void __launch_bounds__(kWarps * 32)
    moe_down_3d_batched(const __grid_constant__ LiteralMoeParams p) {
  constexpr int kAhead = 6;
  ptx::wait_for_previous_kernel();
  ptx::allow_next_kernel();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int output = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int token = static_cast<int>(blockIdx.y);
  if (output >= p.down.rows) return;
  const int granules = p.down.cols / Granule<kFormat>::kCols;  // of one expert
  const int total = granules * p.top_k;
  float sum = 0.0f;
  for (int at = lane; at < total; at += 32 * kAhead) {
    uint4 ws[kAhead] = {};
    float factor[kAhead] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int c = at + 32 * i;
      if (c >= total) continue;
      const int pair = token * p.top_k + c / granules;
      const int expert = p.topk_ids[pair];
      if (expert < 0 || expert >= p.down.num_matrices) continue;
      const Row row = row_of(p.down, expert, output, kElementBytes<kFormat>);
      ws[i] = load_weights(row.data + c % granules);
      factor[i] = p.topk_weights[pair] * Granule<kFormat>::scale(row.scales, c % granules);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int c = at + 32 * i;
      if (c >= total || factor[i] == 0.0f) continue;
      const float* h = p.h + static_cast<int64_t>(token * p.top_k + c / granules) * p.down.cols +
                       c % granules * Granule<kFormat>::kCols;
      sum = fmaf(factor[i], dot<kFormat>(ws[i], h), sum);
    }
  }
  sum = sum_of_warp(sum);
  if (lane == 0) {
    reinterpret_cast<__nv_bfloat16*>(p.y)[static_cast<int64_t>(token) * p.down.rows + output] =
        __float2bfloat16_rn(sum);
  }
}

template <WeightFormat kFormat>
void launch(const LiteralMoeParams& p, cudaStream_t stream) {
  const auto blocks = [](int rows) { return static_cast<unsigned>((rows + kWarps - 1) / kWarps); };
  LaunchConfig gate_up(dim3(blocks(p.gate.rows), static_cast<unsigned>(p.top_k),
                            static_cast<unsigned>(p.num_tokens)),
                       kWarps * 32, 0, stream);
  gate_up.programmatic();
  gate_up.run(moe_gate_up_3d_batched<kFormat>, p);
  LaunchConfig down(dim3(blocks(p.down.rows), static_cast<unsigned>(p.num_tokens)), kWarps * 32, 0,
                    stream);
  down.programmatic();
  down.run(moe_down_3d_batched<kFormat>, p);
}

void check(const LiteralMoeParams& p) {
  check_argument(
      p.gate.format == p.down.format && p.gate.format == p.up.format &&
          (p.gate.format == WeightFormat::kBf16 || p.gate.format == WeightFormat::kMxfp8),
      [] { return std::string("literal moe: wanted BF16 or MXFP8 gate, up and down"); });
  check_argument(p.gate.rows == p.down.cols && p.gate.cols == p.down.rows &&
                     p.gate.cols % 32 == 0 && p.down.cols % 32 == 0,
                 [&] {
                   return "literal moe: gate [" + std::to_string(p.gate.rows) + ", " +
                          std::to_string(p.gate.cols) + "], down [" + std::to_string(p.down.rows) +
                          ", " + std::to_string(p.down.cols) +
                          "]; wanted [I, H] and [H, I], multiples of 32";
                 });
  check_argument(
      p.num_tokens >= 0 && p.num_tokens <= 65535 && p.top_k >= 1 && p.top_k <= kMaxTopK, [&] {
        return "literal moe: T " + std::to_string(p.num_tokens) + ", K " + std::to_string(p.top_k) +
               "; wanted T 0 .. 65535, K 1 .. " + std::to_string(kMaxTopK);
      });
}

}  // namespace

void literal_moe(const LiteralMoeParams& p, cudaStream_t stream) {
  check(p);
  if (p.num_tokens == 0) return;
  if (p.gate.format == WeightFormat::kBf16) return launch<WeightFormat::kBf16>(p, stream);
  launch<WeightFormat::kMxfp8>(p, stream);
}

}  // namespace warproll
