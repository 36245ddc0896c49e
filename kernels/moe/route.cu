// Batches of decode steps: route_small.cu. Others, two kernels.
// route_logits: grid (E / 16 + 1, T / 8), block 256 threads: a CTA produces the logits of sixteen
// experts for eight tokens, its warps share the columns; the last column of CTAs converts the tokens'
// activations. Products of BF16 are exact in F32, so the tensor cores lose nothing; F32 weights take
// route_logits_f32: grid (E / 8 + 1, T / 8), a warp produces the logits of one expert.
// route_top_k: grid T / 32, block 1024 threads: a warp produces one token's ids and weights; the CTA
// that ends last builds the expert lists.
#include "kernels/moe/route.h"

#include <algorithm>
#include <string>

#include "kernels/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/moe/convert_activations.cuh"
#include "kernels/moe/expert_lists.cuh"
#include "kernels/moe/route_small.h"
#include "kernels/moe/route_top_k.cuh"

namespace warproll {
namespace {

constexpr int kTokens = 8;  // of a CTA of route_logits
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kExperts = 16;

// The CTAs behind the experts': activations of eight tokens.
__device__ void convert_tokens(const RouteParams& p, int first, int tokens) {
  __shared__ float largest_of_warp[kWarps];
  const ConvertActivationsParams convert = {p.x, p.x_tile, p.num_tokens, p.hidden_size};
  for (int t = 0; t < tokens; ++t) {
    moe::convert_row<kThreads>(convert, first + t, largest_of_warp);
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads)
    route_logits_kernel(const __grid_constant__ RouteParams p) {
  __shared__ float4 sums[kWarps][32];
  const int first = static_cast<int>(blockIdx.y) * kTokens;
  const int tokens = min(kTokens, p.num_tokens - first);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  const int expert = static_cast<int>(blockIdx.x) * kExperts + g;
  ptx::wait_for_previous_kernel();
  ptx::allow_next_kernel();
  if (static_cast<int>(blockIdx.x) * kExperts >= p.num_experts)
    return convert_tokens(p, first, tokens);
  // Rows past the last are a copy of it. A lane takes eight neighbouring columns of every operand:
  // the order of the columns in a product is free as long as both agree.
  const auto row = [&](const uint16_t* matrix, int index) {
    return reinterpret_cast<const uint4*>(matrix + static_cast<int64_t>(index) * p.hidden_size) + t;
  };
  const auto* weight = static_cast<const uint16_t*>(p.weight);
  const uint4* low = row(weight, min(expert, p.num_experts - 1));
  const uint4* high = row(weight, min(expert + 8, p.num_experts - 1));
  const uint4* x = row(p.x, first + min(g, tokens - 1));
  float sum[4] = {};
#pragma unroll 8
  for (int block = warp; block < p.hidden_size / kTileBlock; block += kWarps) {
    const uint4 a = low[block * 4], b = high[block * 4], v = x[block * 4];
    ptx::mma_16816_bf16(sum, a.x, b.x, a.y, b.y, v.x, v.y);
    ptx::mma_16816_bf16(sum, a.z, b.z, a.w, b.w, v.z, v.w);
  }
  sums[warp][lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
  __syncthreads();
  if (warp != 0) return;
  float4 total = sums[0][lane];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) {
    const float4 v = sums[w][lane];
    total = make_float4(total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w);
  }
  const auto store = [&](int token, int e, float value) {
    if (token < tokens && e < p.num_experts) {
      p.logits[static_cast<int64_t>(first + token) * p.num_experts + e] = value;
    }
  };
  store(2 * t, expert, total.x);
  store(2 * t + 1, expert, total.y);
  store(2 * t, expert + 8, total.z);
  store(2 * t + 1, expert + 8, total.w);
}

__global__ void __launch_bounds__(kThreads)
    route_logits_f32_kernel(const __grid_constant__ RouteParams p) {
  const int first = static_cast<int>(blockIdx.y) * kTokens;
  const int tokens = min(kTokens, p.num_tokens - first);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int expert = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  ptx::wait_for_previous_kernel();
  ptx::allow_next_kernel();
  if (static_cast<int>(blockIdx.x) * kWarps >= p.num_experts)
    return convert_tokens(p, first, tokens);
  if (expert >= p.num_experts) return;
  const float* weight =
      static_cast<const float*>(p.weight) + static_cast<int64_t>(expert) * p.hidden_size;
  for (int t = 0; t < tokens; ++t) {
    const uint16_t* x = p.x + static_cast<int64_t>(first + t) * p.hidden_size;
    float sum = 0.0f;
    for (int c = lane; c < p.hidden_size; c += 32) {
      sum = fmaf(weight[c], __uint_as_float(static_cast<uint32_t>(x[c]) << 16), sum);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) p.logits[static_cast<int64_t>(first + t) * p.num_experts + expert] = sum;
  }
}

template <int kPerLane>
__global__ void __launch_bounds__(moe::kListThreads)
    route_top_k_kernel(const __grid_constant__ RouteParams p) {
  __shared__ moe::ListScratch scratch;
  const int token = static_cast<int>(blockIdx.x) * 32 + static_cast<int>(threadIdx.x) / 32;
  ptx::wait_for_previous_kernel();
  ptx::allow_next_kernel();
  if (token < p.num_tokens) {
    const float* logits = p.logits + static_cast<int64_t>(token) * p.num_experts;
    moe::store_chosen(p, token, moe::top_k_of_token<kPerLane>(p, logits, token));
  }
  if (!moe::is_last_cta(p.lists.finished_ctas, gridDim.x)) return;
  moe::build_lists<moe::kListThreads>({.topk_ids = p.topk_ids,
                                       .topk_weights = p.topk_weights,
                                       .lists = p.lists,
                                       .num_tokens = p.num_tokens,
                                       .num_experts = p.num_experts,
                                       .top_k = p.top_k},
                                      scratch);
}

template <int kPerLane>
void launch_top_k(const RouteParams& p, cudaStream_t stream) {
  LaunchConfig config(dim3(static_cast<unsigned>((p.num_tokens + 31) / 32)), moe::kListThreads, 0,
                      stream);
  config.programmatic();
  config.run(route_top_k_kernel<kPerLane>, p);
}

void check(const RouteParams& p) {
  check_argument(
      p.num_tokens >= 0 && p.num_tokens <= 8192 && p.num_experts >= 1 &&
          p.num_experts <= kMaxExperts && p.top_k >= 1 &&
          p.top_k <= std::min(p.num_experts, kMaxTopK) && p.hidden_size > 0 &&
          p.hidden_size % kTileBlock == 0,
      [&] {
        return "route: T " + std::to_string(p.num_tokens) + ", H " + std::to_string(p.hidden_size) +
               ", E " + std::to_string(p.num_experts) + ", K " + std::to_string(p.top_k) +
               "; wanted T 0 .. 8192, H a multiple of 32, E 1 .. " + std::to_string(kMaxExperts) +
               ", K 1 .. min(E, " + std::to_string(kMaxTopK) + ")";
      });
  check_argument(p.weight_dtype == Dtype::kBf16 || p.weight_dtype == Dtype::kF32, [&] {
    return "route: weights are " + std::string(to_string(p.weight_dtype)) + ", wanted BF16 or F32";
  });
}

}  // namespace

void route(const RouteParams& p, cudaStream_t stream) {
  check(p);
  if (p.num_tokens == 0) return;
  if (moe::route_is_small(p)) return moe::launch_route_small(p, stream);
  const bool bf16 = p.weight_dtype == Dtype::kBf16;
  const int experts = bf16 ? kExperts : kWarps;  // of a CTA
  const int converters = p.x_tile.values != nullptr ? 1 : 0;
  LaunchConfig config(
      dim3(static_cast<unsigned>((p.num_experts + experts - 1) / experts + converters),
           static_cast<unsigned>((p.num_tokens + kTokens - 1) / kTokens)),
      kThreads, 0, stream);
  config.programmatic();
  config.run(bf16 ? route_logits_kernel : route_logits_f32_kernel, p);
  const int per_lane = (p.num_experts + 31) / 32;
  if (per_lane <= 1) return launch_top_k<1>(p, stream);
  if (per_lane <= 4) return launch_top_k<4>(p, stream);
  launch_top_k<16>(p, stream);
}

}  // namespace warproll
