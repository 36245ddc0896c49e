// The kernels of expert_centric around its two GEMMs, and the workspace: prepare (a warp makes one
// token's F16 row and the ranks of its pairs), place (a CTA gives its pairs their sorted positions;
// the first lists the token blocks), combine (a thread sums the K terms of four outputs in k
// order). Internal to expert_centric.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/moe/combine.cuh"
#include "kernels/moe/convert_activations.cuh"
#include "kernels/moe/expert_centric.h"
#include "kernels/moe/expert_centric_items.cuh"
#include "kernels/moe/launch.cuh"
#include "kernels/router.h"

namespace warproll::moe {
namespace {

inline constexpr int kPrepareThreads = 128;
inline constexpr int kPlaceThreads = kMaxExperts;
inline constexpr int kPlacePairs = 2048;
inline constexpr int kCombineThreads = 128;
inline constexpr int kCombineCols = 4;

// What the workspace holds, in this order.
struct Workspace {
  int32_t* counts;      // [E] pairs of an expert
  int32_t* any_scale;   // [1] not 0: some x_scales are not 1. Zeroed with counts.
  int32_t* num_blocks;  // [1]
  TokenBlock* blocks;   // [max_blocks]
  int32_t* positions;   // [P] of a pair: its rank among its expert's, then its sorted position; -1
  int32_t* tokens;      // [P] by sorted position
  float* x_scales;      // [T]
  uint16_t* x;          // F16 [T, H]
  uint16_t* h;          // F16 [P, I / 32, 2, 32] by sorted position
  float* partials;      // [P, H] by sorted position
  size_t bytes;
};

inline int64_t max_token_blocks(const ExpertCentricShape& s) {
  const int64_t pairs = int64_t{s.num_tokens} * s.top_k;
  return pairs / kMaxTokenBlock + std::min<int64_t>(s.num_experts, pairs);
}

inline Workspace workspace_at(std::byte* memory, const ExpertCentricShape& s) {
  Workspace w = {};
  const auto take = [&]<typename T>(T*& part, int64_t count) {
    part = reinterpret_cast<T*>(memory + w.bytes);
    w.bytes += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
  };
  const int64_t pairs = int64_t{s.num_tokens} * s.top_k;
  take(w.counts, s.num_experts + 2);
  w.any_scale = w.counts + s.num_experts;
  w.num_blocks = w.any_scale + 1;
  take(w.blocks, max_token_blocks(s));
  take(w.positions, pairs);
  take(w.tokens, pairs);
  take(w.x_scales, s.num_tokens);
  take(w.x, int64_t{s.num_tokens} * s.hidden_size);
  take(w.h, 2 * pairs * s.intermediate_size);
  take(w.partials, pairs * s.hidden_size);
  return w;
}

struct PrepareParams {
  const uint16_t* x;   // BF16 [T, H]
  const int32_t* ids;  // [T, K]
  Workspace to;
  int num_tokens, num_experts, top_k, hidden_size;
};

__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(const __grid_constant__ PrepareParams p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int token = static_cast<int>(blockIdx.x * kPrepareThreads + threadIdx.x) / 32;
  ptx::wait_for_previous_kernel();
  ptx::allow_next_kernel();
  if (token >= p.num_tokens) return;
  if (lane < p.top_k) {
    const int pair = token * p.top_k + lane;
    const int expert = p.ids[pair];
    const bool valid = expert >= 0 && expert < p.num_experts;
    // The order of ranks varies; no result depends on it.
    p.to.positions[pair] = valid ? atomicAdd(p.to.counts + expert, 1) : -1;
  }
  const int64_t begin = int64_t{token} * p.hidden_size;
  const auto* x = reinterpret_cast<const uint4*>(p.x + begin);
  auto* out = reinterpret_cast<uint4*>(p.to.x + begin);
  const int chunks = p.hidden_size / 8;
  float largest = 0.0f;
  for (int c = lane; c < chunks; c += 32) {
    const uint4 eight = x[c];
    for (const uint32_t two : {eight.x, eight.y, eight.z, eight.w}) {
      largest = fmaxf(largest, fmaxf(fabsf(__uint_as_float(two << 16)),
                                     fabsf(__uint_as_float(two & 0xffff0000u))));
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  }
  const float scale = activation_scale(largest), inverse = 1.0f / scale;
  if (lane == 0) {
    p.to.x_scales[token] = scale;
    if (scale != 1.0f) *p.to.any_scale = 1;
  }
  for (int c = lane; c < chunks; c += 32) {
    const uint4 eight = x[c];
    const auto half_two = [&](uint32_t two) {
      const __half2 halves = __floats2half2_rn(__uint_as_float(two << 16) * inverse,
                                               __uint_as_float(two & 0xffff0000u) * inverse);
      return *reinterpret_cast<const uint32_t*>(&halves);
    };
    out[c] = make_uint4(half_two(eight.x), half_two(eight.y), half_two(eight.z), half_two(eight.w));
  }
}

struct PlaceParams {
  const int32_t* ids;  // [P]
  Workspace to;
  int num_pairs, num_experts, top_k;
};

__global__ void __launch_bounds__(kPlaceThreads)
    place_kernel(const __grid_constant__ PlaceParams p) {
  __shared__ int first_of_expert[kMaxExperts];
  __shared__ int2 sums_of_warp[kPlaceThreads / 32];
  const int me = static_cast<int>(threadIdx.x), lane = me % 32;
  ptx::wait_for_previous_kernel();
  ptx::allow_next_kernel();
  const int count = me < p.num_experts ? p.to.counts[me] : 0;
  const int blocks = (count + kMaxTokenBlock - 1) / kMaxTokenBlock;
  int2 sum = {count, blocks};  // inclusive
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int pairs = __shfl_up_sync(~0u, sum.x, step), others = __shfl_up_sync(~0u, sum.y, step);
    if (lane >= step) sum = {sum.x + pairs, sum.y + others};
  }
  if (lane == 31) sums_of_warp[me / 32] = sum;
  __syncthreads();
  for (int w = 0; w < me / 32; ++w) {
    sum = {sum.x + sums_of_warp[w].x, sum.y + sums_of_warp[w].y};
  }
  first_of_expert[me] = sum.x - count;
  __syncthreads();
  if (blockIdx.x == 0) {
    // Even blocks: a short last one would stream its weights for little.
    const int even = blocks == 0 ? 0 : (count + blocks - 1) / blocks;
    const int size = (even + kTokenStep - 1) / kTokenStep * kTokenStep;
    const int head = sum.y - blocks;
    for (int b = 0; b < blocks; ++b) {
      p.to.blocks[head + b] = {.first = sum.x - count + b * size,
                               .count = static_cast<int16_t>(min(size, count - b * size)),
                               .expert = static_cast<int16_t>(me),
                               .head = head,
                               .siblings = blocks};
    }
    if (me == kPlaceThreads - 1) *p.to.num_blocks = sum.y;
  }
  const int begin = static_cast<int>(blockIdx.x) * kPlacePairs;
  for (int pair = begin + me; pair < min(begin + kPlacePairs, p.num_pairs); pair += kPlaceThreads) {
    const int rank = p.to.positions[pair];
    if (rank < 0) continue;
    const int position = first_of_expert[p.ids[pair]] + rank;
    p.to.positions[pair] = position;
    p.to.tokens[position] = pair / p.top_k;
  }
}

struct CombineParams {
  const float* partials;     // [P, H] by sorted position
  const int32_t* positions;  // [T * K]; -1: none
  const float* weights;      // [T * K]
  __nv_bfloat16* y;          // [T, H]
  float* y_f32;              // instead of y, or null
  int top_k, hidden_size;
};

__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const __grid_constant__ CombineParams p) {
  const int col = static_cast<int>(blockIdx.x * kCombineThreads + threadIdx.x) * kCombineCols;
  const int token = static_cast<int>(blockIdx.y);
  ptx::wait_for_previous_kernel();
  ptx::allow_next_kernel();
  if (col >= p.hidden_size) return;
  float4 sum = {};
#pragma unroll 8
  for (int k = 0; k < p.top_k; ++k) {
    const int position = p.positions[token * p.top_k + k];
    if (position < 0) continue;
    const float weight = p.weights[token * p.top_k + k];
    const float4 v = __ldcs(reinterpret_cast<const float4*>(
        p.partials + static_cast<int64_t>(position) * p.hidden_size + col));
    sum = make_float4(fmaf(weight, v.x, sum.x), fmaf(weight, v.y, sum.y), fmaf(weight, v.z, sum.z),
                      fmaf(weight, v.w, sum.w));
  }
  constexpr float kUp = 1.0f / kHiddenScale;
  sum = make_float4(sum.x * kUp, sum.y * kUp, sum.z * kUp, sum.w * kUp);
  store_outputs(p.y, p.y_f32, static_cast<int64_t>(token) * p.hidden_size + col, sum);
}

}  // namespace
}  // namespace warproll::moe
