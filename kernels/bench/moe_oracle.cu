#include "kernels/bench/moe_oracle.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/launch.cuh"

namespace warproll {
namespace {

constexpr int kThreads = 128;

__device__ double weight_at(const WeightView& w, int expert, int row, int col) {
  const std::byte* matrix = w.data + static_cast<int64_t>(expert) * w.matrix_stride_bytes;
  const std::byte* scales = w.scales + static_cast<int64_t>(expert) * w.scale_stride_bytes;
  const int64_t at = static_cast<int64_t>(row) * w.cols + col;
  if (w.format == WeightFormat::kBf16) {
    return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(matrix)[at]);
  }
  __nv_fp8_e4m3 e4m3;
  e4m3.__x = reinterpret_cast<const __nv_fp8_storage_t*>(matrix)[at];
  const double value = static_cast<float>(e4m3);
  if (w.format == WeightFormat::kMxfp8) {
    return value *
           exp2(static_cast<double>(reinterpret_cast<const uint8_t*>(scales)[at / 32]) - 127.0);
  }
  const int groups = (w.cols + w.block_cols - 1) / w.block_cols;
  return value *
         reinterpret_cast<const float*>(scales)[row / w.block_rows * groups + col / w.block_cols];
}

__device__ double sum_of_block(double v) {
  __shared__ double of_warp[kThreads / 32];
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
  __syncthreads();
  double sum = 0.0;
  for (int i = 0; i < kThreads / 32; ++i) sum += of_warp[i];
  __syncthreads();
  return sum;
}

// A warp's 32 neighbours as one MXFP8 block.
__device__ double through_mxfp8(double x) {
  const auto value = static_cast<float>(x);
  const uint32_t largest = __reduce_max_sync(~0u, __float_as_uint(value) & 0x7fffffffu);
  const int scale = max(static_cast<int>(largest >> 23) - 8, 0);
  __nv_fp8_e4m3 e4m3;
  e4m3.__x = __nv_cvt_float_to_fp8(value * exp2f(127.0f - scale), __NV_SATFINITE, __NV_E4M3);
  return static_cast<double>(static_cast<float>(e4m3)) * exp2(static_cast<double>(scale) - 127.0);
}

__global__ void read_x(const __nv_bfloat16* x, double* out, int64_t count,
                       OracleRounding rounding) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;  // whole warps
  const double value = i < count ? static_cast<double>(__bfloat162float(x[i])) : 0.0;
  const double kept = rounding == OracleRounding::kMxfp8Activations ? through_mxfp8(value) : value;
  if (i < count) out[i] = kept;
}

__global__ void round_hidden(double* h, int64_t count, OracleRounding rounding) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const double value = i < count ? h[i] : 0.0;
  const double kept = rounding == OracleRounding::kMxfp8Activations
                          ? through_mxfp8(value)
                          : static_cast<double>(__bfloat162float(__double2bfloat16(value)));
  if (i < count) h[i] = kept;
}

__global__ void gate_up(MoeOracleParams p, const double* x, double* h) {
  const int neuron = static_cast<int>(blockIdx.x);
  const int pair = static_cast<int>(blockIdx.y);
  const double* row = x + static_cast<int64_t>(pair / p.top_k) * p.gate.cols;
  double g = 0.0, u = 0.0;
  for (int c = static_cast<int>(threadIdx.x); c < p.gate.cols; c += kThreads) {
    g += weight_at(p.gate, p.topk_ids[pair], neuron, c) * row[c];
    u += weight_at(p.up, p.topk_ids[pair], neuron, c) * row[c];
  }
  g = sum_of_block(g);
  u = sum_of_block(u);
  if (threadIdx.x == 0)
    h[static_cast<int64_t>(pair) * p.gate.rows + neuron] = g / (1.0 + exp(-g)) * u;
}

__global__ void down(MoeOracleParams p, const double* h) {
  const int output = static_cast<int>(blockIdx.x);
  const int token = static_cast<int>(blockIdx.y);
  double sum = 0.0;
  for (int k = 0; k < p.top_k; ++k) {
    const int pair = token * p.top_k + k;
    const double* row = h + static_cast<int64_t>(pair) * p.down.cols;
    double part = 0.0;
    for (int c = static_cast<int>(threadIdx.x); c < p.down.cols; c += kThreads) {
      part += weight_at(p.down, p.topk_ids[pair], output, c) * row[c];
    }
    sum += p.topk_weights[pair] * part;
  }
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) p.y[static_cast<int64_t>(token) * p.down.rows + output] = sum;
}

dim3 ctas_of(int64_t count) {
  return dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads));
}

}  // namespace

void moe_oracle(const MoeOracleParams& p) {
  if (p.num_tokens == 0) return;
  const int64_t xs = static_cast<int64_t>(p.num_tokens) * p.gate.cols;
  const int64_t hs = static_cast<int64_t>(p.num_tokens) * p.top_k * p.gate.rows;
  DeviceBuffer<double> x(static_cast<size_t>(xs)), h(static_cast<size_t>(hs));
  const auto grid = [](int cols, int rows) {
    return dim3(static_cast<unsigned>(cols), static_cast<unsigned>(rows));
  };
  read_x<<<ctas_of(xs), kThreads>>>(reinterpret_cast<const __nv_bfloat16*>(p.x), x.data(), xs,
                                    p.rounding);
  gate_up<<<grid(p.gate.rows, p.num_tokens * p.top_k), kThreads>>>(p, x.data(), h.data());
  if (p.rounding != OracleRounding::kNone)
    round_hidden<<<ctas_of(hs), kThreads>>>(h.data(), hs, p.rounding);
  down<<<grid(p.down.rows, p.num_tokens), kThreads>>>(p, h.data());
  WARPROLL_CUDA_CHECK(cudaGetLastError());
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
}

}  // namespace warproll
