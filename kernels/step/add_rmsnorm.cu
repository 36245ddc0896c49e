// add_rmsnorm: grid one CTA a token, block up to 512 threads. A CTA produces one row of hidden and of
// its norm; it keeps the row in registers, so everything is read once. Registers do not limit a CTA
// below one an SM: with fewer, the compiler has two partials under way instead of eight.
#include "kernels/step/add_rmsnorm.h"

#include <string>

#include "kernels/check.h"
#include "kernels/moe/combine.cuh"
#include "kernels/moe/convert_activations.cuh"
#include "kernels/router.h"
#include "kernels/step/residual_norm.cuh"
#include "kernels/step/vectors.cuh"

namespace warproll {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kMaxWarps = kMaxThreads / 32;
constexpr int kCols = step::kGranuleCols;
constexpr int kMaxGranules = 8;  // of a thread
static_assert(kMaxThreads * kCols * kMaxGranules == kMaxAddRmsNormHidden);

enum class Addend { kNone, kTensor, kPartials };

__device__ __forceinline__ float4 combine_partials(const AddRmsNormParams& p, int64_t token,
                                                   int col) {
  const int top_k = p.moe.top_k, stride = p.hidden_size;
  const float* weights = p.moe.pair_weights + token * top_k;
  const float* at = p.moe.partials + token * top_k * stride + col;
  const float4 y = moe::sum_of_partials(weights, at, stride, top_k);
  return step::bf16_to_float4(step::float4_to_bf16(y));
}

// Four columns of hidden after the addition, as BF16.
template <Addend kAddend>
__device__ __forceinline__ uint2 add(const AddRmsNormParams& p, int64_t token, int col) {
  const int64_t at = token * p.hidden_size + col;
  const uint2 old = *reinterpret_cast<const uint2*>(p.hidden + at);
  if constexpr (kAddend == Addend::kNone) return old;
  const float4 y =
      kAddend == Addend::kTensor ? step::load_bf16(p.addend + at) : combine_partials(p, token, col);
  return step::add_granules(old, y);
}

// Of the whole CTA, in warp order; every thread gets it. Each call has its own `of_warp`.
__device__ __forceinline__ float sum_of_cta(float v, float* of_warp) {
  v = step::sum_of_warp(v);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = of_warp[0];
#pragma unroll
  for (int w = 1; w < kMaxWarps; ++w) {
    if (w < static_cast<int>(blockDim.x) / 32) sum += of_warp[w];
  }
  return sum;
}
__device__ __forceinline__ float max_of_cta(float v, float* of_warp) {
  v = step::max_of_warp(v);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
  __syncthreads();
  float largest = of_warp[0];
#pragma unroll
  for (int w = 1; w < kMaxWarps; ++w) {
    if (w < static_cast<int>(blockDim.x) / 32) largest = fmaxf(largest, of_warp[w]);
  }
  return largest;
}

template <Addend kAddend, int kGranules>
__global__ void __launch_bounds__(kMaxThreads, 1)
    add_rmsnorm_kernel(const __grid_constant__ AddRmsNormParams p) {
  __shared__ float sum_of_warp[kMaxWarps], largest_of_warp[kMaxWarps];
  ptx::allow_next_kernel();  // its weights come while we wait
  const int64_t token = blockIdx.x;
  const auto column = [](int i) {  // of this thread's granule i
    return static_cast<int>(static_cast<unsigned>(i) * blockDim.x + threadIdx.x) * kCols;
  };
  float4 weight[kGranules];
#pragma unroll
  for (int i = 0; i < kGranules; ++i) {
    weight[i] = {};
    if (column(i) < p.hidden_size)
      weight[i] = step::load_weights(p.weight, p.weight_dtype, column(i));
  }
  ptx::wait_for_previous_kernel();
  uint2 x[kGranules];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kGranules; ++i) {
    x[i] = make_uint2(0, 0);
    if (column(i) < p.hidden_size) x[i] = add<kAddend>(p, token, column(i));
    squares = step::add_squares(squares, x[i]);
  }
  if constexpr (kAddend != Addend::kNone) {
#pragma unroll
    for (int i = 0; i < kGranules; ++i) {
      if (column(i) < p.hidden_size)
        *reinterpret_cast<uint2*>(p.hidden + token * p.hidden_size + column(i)) = x[i];
    }
  }
  if constexpr (kAddend == Addend::kPartials) {
    if (token == 0 && threadIdx.x == 0 && p.moe.counts != nullptr) p.moe.counts->next_down = 0;
  }
  const float scale = step::norm_scale(sum_of_cta(squares, sum_of_warp), p.hidden_size, p.eps);
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kGranules; ++i) {
    x[i] = step::scale_granule(x[i], scale, weight[i]);  // zeros behind the last column
    largest = fmaxf(largest, step::largest_of_granule(x[i]));
    if (p.normed != nullptr && column(i) < p.hidden_size)
      *reinterpret_cast<uint2*>(p.normed + token * p.hidden_size + column(i)) = x[i];
  }
  if (p.normed_tile.values == nullptr) return;
  const float tile_scale = moe::activation_scale(max_of_cta(largest, largest_of_warp));
  const float inverse = 1.0f / tile_scale;
  if (threadIdx.x == 0) p.normed_tile.scales[token] = tile_scale;
  uint16_t* row = p.normed_tile.values + token * p.hidden_size;
#pragma unroll
  for (int i = 0; i < kGranules; ++i) {
    if (column(i) < p.hidden_size) step::store_tile_granule(row, column(i), x[i], inverse);
  }
}

template <Addend kAddend, int kGranules>
void launch(const AddRmsNormParams& p, cudaStream_t stream) {
  const int threads = ((p.hidden_size / kCols + kGranules - 1) / kGranules + 31) / 32 * 32;
  LaunchConfig config(dim3(static_cast<unsigned>(p.num_tokens)), threads, 0, stream);
  config.programmatic();
  config.all_shared();
  config.run(add_rmsnorm_kernel<kAddend, kGranules>, p);
}

template <Addend kAddend>
void launch_size(const AddRmsNormParams& p, cudaStream_t stream) {
  const int granules = p.hidden_size / kCols;
  if (granules <= 2 * kMaxThreads) return launch<kAddend, 2>(p, stream);
  if (granules <= 4 * kMaxThreads) return launch<kAddend, 4>(p, stream);
  launch<kAddend, kMaxGranules>(p, stream);
}

void check_pointers(const AddRmsNormParams& p) {
  const bool tile = p.normed_tile.values != nullptr;
  check_argument(p.hidden != nullptr && p.weight != nullptr && (p.normed != nullptr || tile), [] {
    return std::string("add_rmsnorm: hidden, weight, or both of normed and normed_tile are null");
  });
  check_argument(!tile || p.normed_tile.scales != nullptr,
                 [] { return std::string("add_rmsnorm: normed_tile.scales is null"); });
  check_argument(step::is_aligned(p.hidden) && step::is_aligned(p.addend) &&
                     step::is_aligned(p.weight) && step::is_aligned(p.normed) &&
                     step::is_aligned(p.normed_tile.values) && step::is_aligned(p.moe.partials),
                 [] { return std::string("add_rmsnorm: a pointer is not 16-byte aligned"); });
}

void check(const AddRmsNormParams& p) {
  check_argument(p.num_tokens >= 0 && p.hidden_size >= kTileBlock &&
                     p.hidden_size <= kMaxAddRmsNormHidden && p.hidden_size % kTileBlock == 0,
                 [&] {
                   return "add_rmsnorm: T " + std::to_string(p.num_tokens) + ", H " +
                          std::to_string(p.hidden_size) +
                          "; wanted T >= 0, H a multiple of 32 up to " +
                          std::to_string(kMaxAddRmsNormHidden);
                 });
  check_argument(p.weight_dtype == Dtype::kBf16 || p.weight_dtype == Dtype::kF16 ||
                     p.weight_dtype == Dtype::kF32,
                 [&] {
                   return "add_rmsnorm: weight dtype is " + std::string(to_string(p.weight_dtype)) +
                          ", wanted BF16, F16 or F32";
                 });
  const bool partials = p.moe.partials != nullptr;
  check_argument(!partials || p.addend == nullptr,
                 [] { return std::string("add_rmsnorm: both addend and partials are given"); });
  check_argument(
      !partials || (p.moe.pair_weights != nullptr && p.moe.top_k >= 1 && p.moe.top_k <= kMaxTopK),
      [&] {
        return "add_rmsnorm: partials of K " + std::to_string(p.moe.top_k) +
               (p.moe.pair_weights == nullptr ? " without" : " with") +
               " pair weights; wanted K 1 .. " + std::to_string(kMaxTopK) + " with weights";
      });
}

}  // namespace

void add_rmsnorm(const AddRmsNormParams& p, cudaStream_t stream) {
  check(p);
  if (p.num_tokens == 0) return;
  check_pointers(p);
  if (p.moe.partials != nullptr) return launch_size<Addend::kPartials>(p, stream);
  if (p.addend != nullptr) return launch_size<Addend::kTensor>(p, stream);
  launch_size<Addend::kNone>(p, stream);
}

}  // namespace warproll
