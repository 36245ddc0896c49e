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
  if (blockIdx.x + 1 == gridDim.x) return convert_tokens(p, first, tokens);
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
  if (blockIdx.x + 1 == gridDim.x) return convert_tokens(p, first, tokens);
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

// Floats in the order of unsigned integers.
__device__ __forceinline__ uint32_t ordered(float v) {
  v += 0.0f;  // -0 is 0
  const uint32_t bits = __float_as_uint(v);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// One warp, one token. kPerLane: logits a lane holds, expert i * 32 + lane.
template <int kPerLane>
__device__ __forceinline__ void top_k_of_token(const RouteParams& p, int token) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* logits = p.logits + static_cast<int64_t>(token) * p.num_experts;
  float value[kPerLane];
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * 32 + lane;
    value[i] = e < p.num_experts ? __ldcg(logits + e) : -INFINITY;
    largest = fmaxf(largest, value[i]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    total += i * 32 + lane < p.num_experts ? expf(value[i] - largest) : 0.0f;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(~0u, total, step);

  const int64_t out = static_cast<int64_t>(token) * p.top_k;
  int id = 0;  // of place `lane`, lanes 0 .. K - 1
  float chosen = 0.0f;
  if (p.given_ids != nullptr) {
    if (lane < p.top_k) {
      id = p.given_ids[out + lane];
      const bool valid = id >= 0 && id < p.num_experts;
      chosen = p.given_weights != nullptr ? p.given_weights[out + lane]
               : valid                    ? expf(__ldcg(logits + id) - largest) / total
                                          : 0.0f;
    }
  } else {
    // By logits, which order experts as probabilities do and more finely. NaN comes first, so that it
    // shows in the weights.
    uint32_t taken = 0;  // bit i: expert i * 32 + lane
    for (int k = 0; k < p.top_k; ++k) {
      uint32_t best = 0;
      int at = kPerLane * 32;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int e = i * 32 + lane;
        const uint32_t key = ordered(value[i]);
        if (e < p.num_experts && (taken >> i & 1) == 0 && (key > best || at == kPerLane * 32)) {
          best = key;
          at = e;
        }
      }
      const uint32_t winner = __reduce_max_sync(~0u, best);
      const int expert = __reduce_min_sync(~0u, best == winner ? at : kPerLane * 32);
      if (expert % 32 == lane) taken |= 1u << expert / 32;
      if (lane == k) id = expert;
    }
    if (lane < p.top_k) chosen = expf(__ldcg(logits + id) - largest) / total;
  }
  if (p.renormalise && p.given_weights == nullptr) {
    float sum = 0.0f;
    for (int k = 0; k < p.top_k; ++k) sum += __shfl_sync(~0u, chosen, k);
    chosen /= sum;
  }
  if (lane < p.top_k) {
    p.topk_ids[out + lane] = id;
    p.topk_weights[out + lane] = chosen;
  }
}

template <int kPerLane>
__global__ void __launch_bounds__(moe::kListThreads)
    route_top_k_kernel(const __grid_constant__ RouteParams p) {
  __shared__ moe::ListScratch scratch;
  __shared__ bool last;
  const int token = static_cast<int>(blockIdx.x) * 32 + static_cast<int>(threadIdx.x) / 32;
  ptx::wait_for_previous_kernel();
  ptx::allow_next_kernel();
  if (token < p.num_tokens) top_k_of_token<kPerLane>(p, token);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    // Counts the CTAs that are done, and leaves 0 for the next time.
    last = atomicInc(p.lists.finished_ctas, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
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
  const bool bf16 = p.weight_dtype == Dtype::kBf16;
  const int experts = bf16 ? kExperts : kWarps;  // of a CTA
  LaunchConfig config(dim3(static_cast<unsigned>((p.num_experts + experts - 1) / experts + 1),
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
