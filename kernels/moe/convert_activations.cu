// convert_activations: grid one CTA a token, block 128 threads. A CTA produces one row of F16 in
// tile order and its scale.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>

#include "kernels/check.h"
#include "kernels/moe/convert_activations.cuh"
#include "kernels/moe/launch.cuh"

namespace warproll {
namespace {

__global__ void __launch_bounds__(moe::kConvertThreads) convert_kernel(ConvertActivationsParams p) {
  __shared__ float largest_of_warp[moe::kConvertThreads / 32];
  ptx::wait_for_previous_kernel();
  ptx::allow_next_kernel();
  moe::convert_row<moe::kConvertThreads>(p, static_cast<int>(blockIdx.x), largest_of_warp);
}

}  // namespace

void convert_activations(const ConvertActivationsParams& p, cudaStream_t stream) {
  check_argument(p.num_tokens >= 0 && p.hidden_size > 0 && p.hidden_size % kTileBlock == 0, [&] {
    return "convert activations: T " + std::to_string(p.num_tokens) + ", H " +
           std::to_string(p.hidden_size) + "; wanted T >= 0, H a multiple of " +
           std::to_string(kTileBlock);
  });
  if (p.num_tokens == 0) return;
  LaunchConfig config(dim3(static_cast<unsigned>(p.num_tokens)), moe::kConvertThreads, 0, stream);
  config.programmatic();
  config.run(convert_kernel, p);
}

}  // namespace warproll
