#include "kernels/bench/random_experts.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/moe/pack.h"
#include "kernels/quantise.h"

namespace warproll {
namespace {

constexpr int kThreads = 256;
constexpr int kBlock = 128;  // FP8 blocks are [128, 128]

__device__ uint32_t mix(uint64_t v) {  // splitmix64's finaliser
  v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9ull;
  v = (v ^ v >> 27) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>((v ^ v >> 31) >> 32);
}

__global__ void normal_kernel(__nv_bfloat16* out, int64_t count, uint64_t seed, float sigma) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const uint64_t key = seed * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(i) * 2;
    const float u = (static_cast<float>(mix(key * 0x9e3779b97f4a7c15ull) >> 8) + 1.0f) * 0x1p-24f;
    const float v = static_cast<float>(mix((key + 1) * 0x9e3779b97f4a7c15ull) >> 8) * 0x1p-24f;
    out[i] = __float2bfloat16_rn(sqrtf(-2.0f * logf(u)) * cospif(2.0f * v) * sigma);
  }
}

// One CTA a block of [128, 128]: its scale = amax / 448, then its elements.
__global__ void fp8_block_kernel(const __nv_bfloat16* source, int rows, int cols, uint8_t* elements,
                                 float* scales) {
  __shared__ int largest_bits;
  const int groups = (cols + kBlock - 1) / kBlock;
  const int row_groups = (rows + kBlock - 1) / kBlock;
  const int expert = static_cast<int>(blockIdx.y);
  const int r0 = static_cast<int>(blockIdx.x) / groups * kBlock;
  const int c0 = static_cast<int>(blockIdx.x) % groups * kBlock;
  source += static_cast<int64_t>(expert) * rows * cols;
  elements += static_cast<int64_t>(expert) * rows * cols;
  if (threadIdx.x == 0) largest_bits = 0;
  __syncthreads();
  float largest = 0.0f;
  for (int i = static_cast<int>(threadIdx.x); i < kBlock * kBlock; i += kThreads) {
    const int r = r0 + i / kBlock, c = c0 + i % kBlock;
    if (r < rows && c < cols)
      largest = fmaxf(largest, fabsf(__bfloat162float(source[static_cast<int64_t>(r) * cols + c])));
  }
  atomicMax(&largest_bits, __float_as_int(largest));
  __syncthreads();
  const float scale = fmaxf(__int_as_float(largest_bits), 1e-12f) / 448.0f;
  for (int i = static_cast<int>(threadIdx.x); i < kBlock * kBlock; i += kThreads) {
    const int r = r0 + i / kBlock, c = c0 + i % kBlock;
    if (r < rows && c < cols) {
      const int64_t at = static_cast<int64_t>(r) * cols + c;
      elements[at] =
          __nv_cvt_float_to_fp8(__bfloat162float(source[at]) / scale, __NV_SATFINITE, __NV_E4M3);
    }
  }
  if (threadIdx.x == 0)
    scales[static_cast<int64_t>(expert) * row_groups * groups + blockIdx.x] = scale;
}

// BF16 [E, rows, cols] -> the format, in `rows_out` and `scales_out`.
WeightView make(WeightFormat format, const ExpertShape& shape, int rows, int cols, uint64_t seed,
                DeviceBuffer<std::byte>& rows_out, DeviceBuffer<std::byte>& scales_out) {
  const int experts = shape.num_experts;
  const int64_t count = static_cast<int64_t>(experts) * rows * cols;
  WeightView view = {.format = format, .num_matrices = experts, .rows = rows, .cols = cols};
  DeviceBuffer<std::byte> source(static_cast<size_t>(count) * 2);
  fill_normal(reinterpret_cast<uint16_t*>(source.data()), count, seed, 0.02f, nullptr);
  if (format == WeightFormat::kBf16) {
    rows_out = std::move(source);
    view.data = rows_out.data();
    view.matrix_stride_bytes = static_cast<uint64_t>(rows) * static_cast<uint64_t>(cols) * 2;
    return view;
  }
  rows_out = DeviceBuffer<std::byte>(static_cast<size_t>(count));
  view.data = rows_out.data();
  view.matrix_stride_bytes = static_cast<uint64_t>(rows) * static_cast<uint64_t>(cols);
  if (format == WeightFormat::kMxfp8) {
    view.scale_stride_bytes = view.matrix_stride_bytes / 32;
    scales_out = DeviceBuffer<std::byte>(static_cast<size_t>(count / 32));
    quantise_mxfp8({.source = source.data(),
                    .rows = static_cast<int64_t>(experts) * rows,
                    .cols = cols,
                    .elements = reinterpret_cast<uint8_t*>(rows_out.data()),
                    .scales = reinterpret_cast<uint8_t*>(scales_out.data())},
                   nullptr, nullptr);
  } else {
    const int blocks = (rows + kBlock - 1) / kBlock * ((cols + kBlock - 1) / kBlock);
    view.scale_stride_bytes = static_cast<uint64_t>(blocks) * 4;
    view.scale_dtype = Dtype::kF32;
    view.block_rows = view.block_cols = kBlock;
    scales_out = DeviceBuffer<std::byte>(static_cast<size_t>(experts) * blocks * 4);
    LaunchConfig config(dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(experts)),
                        kThreads, 0, nullptr);
    config.run(fp8_block_kernel, reinterpret_cast<const __nv_bfloat16*>(source.data()), rows, cols,
               reinterpret_cast<uint8_t*>(rows_out.data()),
               reinterpret_cast<float*>(scales_out.data()));
  }
  view.scales = scales_out.data();
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());  // before `source` goes
  return view;
}

}  // namespace

void fill_normal(uint16_t* out, int64_t count, uint64_t seed, float sigma, cudaStream_t stream) {
  if (count == 0) return;
  LaunchConfig config(dim3(4096), kThreads, 0, stream);
  config.run(normal_kernel, reinterpret_cast<__nv_bfloat16*>(out), count, seed, sigma);
}

RandomExperts::RandomExperts(const ExpertShape& shape, WeightFormat format, uint64_t seed,
                             bool keep_rows) {
  const int rows = shape.intermediate_size, hidden = shape.hidden_size;
  gate = make(format, shape, rows, hidden, seed * 3, rows_[0], scales_[0]);
  up = make(format, shape, rows, hidden, seed * 3 + 1, rows_[1], scales_[1]);
  down = make(format, shape, hidden, rows, seed * 3 + 2, rows_[2], scales_[2]);
  for (const WeightView* w : {&gate, &up, &down}) {
    bytes_of_expert_ += static_cast<int64_t>(w->matrix_stride_bytes + w->scale_stride_bytes);
  }
  gate_up_tiles = warproll::gate_up_tiles(gate, up);
  down_tiles = warproll::down_tiles(down);
  tiles_[0] = DeviceBuffer<std::byte>(gate_up_tiles.bytes());
  tiles_[1] = DeviceBuffer<std::byte>(down_tiles.bytes());
  pack_gate_up(gate, up, tiles_[0].data(), nullptr);
  pack_down(down, tiles_[1].data(), nullptr);
  gate_up_tiles.data = tiles_[0].data();
  down_tiles.data = tiles_[1].data();
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  if (!keep_rows) {
    for (auto* buffers : {rows_, scales_}) {
      for (int i = 0; i < 3; ++i) buffers[i] = DeviceBuffer<std::byte>();
    }
    gate.data = up.data = down.data = nullptr;
  }
}

}  // namespace warproll
