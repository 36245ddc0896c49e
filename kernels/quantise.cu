// quantise_mxfp8: grid num_quantise_ctas(), block 256 threads (quantise_block.cuh). Bound by
// reading the source.
#include "kernels/quantise.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/quantise_block.cuh"

namespace warproll {
namespace {

template <typename Source>
__global__ void __launch_bounds__(kQuantiseThreads)
    quantise_kernel(QuantiseMxfp8Params p, unsigned long long* first_non_finite) {
  const int64_t begin = int64_t{blockIdx.x} * kQuantiseEights;
  const int64_t end = min(begin + kQuantiseEights, p.rows * p.cols / 8);
  quantise_eights<Source>(p, begin, end, first_non_finite);
}

template <typename Source>
void launch(const QuantiseMxfp8Params& p, int64_t* first_non_finite, cudaStream_t stream) {
  LaunchConfig config(dim3(static_cast<unsigned>(num_quantise_ctas(p))), kQuantiseThreads, 0,
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
