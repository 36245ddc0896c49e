// embed: grid one CTA a token, block up to 256 threads. A CTA produces one row, a thread eight
// columns at a time.
#include "kernels/step/embed.h"

#include <algorithm>
#include <string>

#include "kernels/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/step/vectors.cuh"

namespace warproll {
namespace {

constexpr int kCols = 8;  // of a thread, at a time
constexpr int kMaxThreads = 256;

struct EmbedKernelParams {
  const int32_t* token_ids;
  int token_stride;
  const void* weight;
  uint16_t* hidden;
  int32_t* num_invalid;
  int vocab_size, hidden_size;
};

// Eight values from element `index` on, as BF16.
template <Dtype kDtype>
__device__ __forceinline__ uint4 load_eight(const void* weight, int64_t index) {
  if constexpr (kDtype == Dtype::kBf16) {
    return static_cast<const uint4*>(weight)[index / kCols];
  } else {
    const uint2 low = step::float4_to_bf16(step::load_weights(weight, kDtype, index));
    const uint2 high = step::float4_to_bf16(step::load_weights(weight, kDtype, index + 4));
    return make_uint4(low.x, low.y, high.x, high.y);
  }
}

template <Dtype kDtype>
__global__ void __launch_bounds__(kMaxThreads) embed_kernel(EmbedKernelParams p) {
  const int64_t token = blockIdx.x;
  const int me = static_cast<int>(threadIdx.x);
  ptx::wait_for_previous_kernel();
  ptx::allow_next_kernel();
  const int id = p.token_ids[token * p.token_stride];
  const bool valid = id >= 0 && id < p.vocab_size;
  if (!valid && me == 0 && p.num_invalid != nullptr) atomicAdd(p.num_invalid, 1);
  const int64_t from = static_cast<int64_t>(id) * p.hidden_size;
  auto* out = reinterpret_cast<uint4*>(p.hidden + token * p.hidden_size);
#pragma unroll 2
  for (int c = me * kCols; c < p.hidden_size; c += static_cast<int>(blockDim.x) * kCols) {
    out[c / kCols] = valid ? load_eight<kDtype>(p.weight, from + c) : make_uint4(0, 0, 0, 0);
  }
}

void check(const EmbedParams& p) {
  const WeightView& w = p.weight;
  check_argument(w.format == WeightFormat::kBf16 || w.format == WeightFormat::kF16 ||
                     w.format == WeightFormat::kF32,
                 [&] {
                   return "embed: weight format is " + std::to_string(static_cast<int>(w.format)) +
                          ", wanted BF16, F16 or F32";
                 });
  check_argument(
      p.num_tokens >= 0 && w.num_matrices == 1 && w.rows >= 1 && w.cols >= kCols &&
          w.cols % kCols == 0,
      [&] {
        return "embed: T " + std::to_string(p.num_tokens) + ", " + std::to_string(w.num_matrices) +
               " matrices of V " + std::to_string(w.rows) + ", H " + std::to_string(w.cols) +
               "; wanted T >= 0, one matrix, V >= 1, H a multiple of " + std::to_string(kCols);
      });
  if (p.num_tokens == 0) return;
  check_argument(
      p.token_ids != nullptr && w.data != nullptr && p.hidden != nullptr &&
          step::is_aligned(w.data) && step::is_aligned(p.hidden),
      [] {
        return std::string("embed: a pointer is null, or weight or hidden are not 16-byte aligned");
      });
}

}  // namespace

void embed(const EmbedParams& p, cudaStream_t stream) {
  check(p);
  if (p.num_tokens == 0) return;
  const int threads = std::min(kMaxThreads, (p.weight.cols / kCols + 31) / 32 * 32);
  LaunchConfig config(dim3(static_cast<unsigned>(p.num_tokens)), threads, 0, stream);
  config.programmatic();
  const EmbedKernelParams params = {p.token_ids,   p.token_stride, p.weight.data, p.hidden,
                                    p.num_invalid, p.weight.rows,  p.weight.cols};
  switch (p.weight.format) {
    case WeightFormat::kF32:
      return config.run(embed_kernel<Dtype::kF32>, params);
    case WeightFormat::kF16:
      return config.run(embed_kernel<Dtype::kF16>, params);
    default:
      return config.run(embed_kernel<Dtype::kBf16>, params);
  }
}

}  // namespace warproll
