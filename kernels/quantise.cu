// quantise_mxfp8: grid one CTA 1024 times eight columns, block 256 threads, a lane eight columns. Bound by
// reading the source.
#include "kernels/quantise.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/quantise_block.cuh"

namespace warproll {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 4;
constexpr int64_t kEightsPerCta = kThreads * kPerThread;

template <typename Source>
__global__ void __launch_bounds__(kThreads)
    quantise_kernel(QuantiseMxfp8Params p, unsigned long long* first_non_finite) {
  const int64_t begin = int64_t{blockIdx.x} * kEightsPerCta;
  const int64_t end = min(begin + kEightsPerCta, p.rows * p.cols / 8);
  quantise_eights<Source, kThreads, kPerThread>(p, begin, end, first_non_finite);
}

template <typename Source>
void launch(const QuantiseMxfp8Params& p, int64_t* first_non_finite, cudaStream_t stream) {
  const int64_t ctas = (p.rows * p.cols / 8 + kEightsPerCta - 1) / kEightsPerCta;
  LaunchConfig config(dim3(static_cast<unsigned>(ctas)), kThreads, 0, stream);
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
