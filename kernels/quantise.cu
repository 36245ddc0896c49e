// quantise_mxfp8: grid-stride, one warp a block of 32 columns, one lane a column. Fast enough at
// any size: bound by reading the source.
#include "kernels/quantise.h"

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/quantise_block.cuh"

namespace warproll {
namespace {

constexpr int kThreads = 256;

template <typename Source>
__global__ void __launch_bounds__(kThreads)
    quantise_kernel(QuantiseMxfp8Params p, unsigned long long* first_non_finite) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t blocks = p.rows * p.cols / kMxfp8BlockCols;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (kThreads / 32);
  for (int64_t block = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
       block < blocks; block += warps) {
    quantise_block<Source>(p, block, lane, first_non_finite);
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
