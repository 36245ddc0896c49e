// quantise_mxfp8: grid-stride, one warp a block of 32 columns, one lane a column. Fast enough at
// any size: bound by reading the source.
#include "kernels/quantise.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/cuda/launch.cuh"

namespace warproll {
namespace {

constexpr int kThreads = 256;

__device__ float load(const float* p) { return *p; }
__device__ float load(const __half* p) { return __half2float(*p); }
__device__ float load(const __nv_bfloat16* p) { return __bfloat162float(*p); }

template <typename Source>
__global__ void __launch_bounds__(kThreads)
    quantise_kernel(QuantiseMxfp8Params p, unsigned long long* first_non_finite) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t blocks = p.rows * p.cols / kMxfp8BlockCols;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (kThreads / 32);
  for (int64_t block = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
       block < blocks; block += warps) {
    const int64_t at = block * kMxfp8BlockCols + lane;
    const float x = load(reinterpret_cast<const Source*>(p.source) + at);
    const uint32_t magnitude = __float_as_uint(x) & 0x7fffffffu;
    const uint32_t largest = __reduce_max_sync(~0u, magnitude);
    if (largest >= 0x7f800000u) {
      p.elements[at] = 0;
      if (lane == 0) p.scales[block] = 255;
      if (magnitude >= 0x7f800000u && first_non_finite != nullptr) {
        atomicMin(first_non_finite, static_cast<unsigned long long>(at));
      }
      continue;
    }
    const int scale = max(static_cast<int>(largest >> 23) - 8, 0);  // 448 = 1.75 * 2^8
    const float inverse = __uint_as_float(static_cast<uint32_t>(254 - scale) << 23);
    p.elements[at] = __nv_cvt_float_to_fp8(x * inverse, __NV_SATFINITE, __NV_E4M3);
    if (lane == 0) p.scales[block] = static_cast<uint8_t>(scale);
  }
}

template <typename Source>
void launch(const QuantiseMxfp8Params& p, int64_t* first_non_finite, cudaStream_t stream) {
  const int64_t ctas = (p.rows * p.cols / kMxfp8BlockCols + kThreads / 32 - 1) / (kThreads / 32);
  LaunchConfig config(dim3(static_cast<unsigned>(std::min<int64_t>(ctas, 1 << 16))), kThreads, 0,
                      stream);
  config.run(quantise_kernel<Source>, p, reinterpret_cast<unsigned long long*>(first_non_finite));
}

}  // namespace

void quantise_mxfp8(const QuantiseMxfp8Params& p, int64_t* first_non_finite, cudaStream_t stream) {
  check_quantise_mxfp8(p);
  if (p.rows == 0 || p.cols == 0) return;
  switch (p.source_dtype) {
    case Dtype::kF32:
      return launch<float>(p, first_non_finite, stream);
    case Dtype::kF16:
      return launch<__half>(p, first_non_finite, stream);
    default:
      return launch<__nv_bfloat16>(p, first_non_finite, stream);
  }
}

}  // namespace warproll
