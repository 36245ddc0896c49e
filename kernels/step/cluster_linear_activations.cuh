// cluster_linear: a CTA's columns of x into its shared memory, by all warps that multiply.
// Internal to kernels/step/cluster_linear*.
#pragma once

#include <cuda_fp16.h>

#include "kernels/moe/convert_activations.cuh"
#include "kernels/moe/expert_centric_mma.cuh"
#include "kernels/step/cluster_linear_shared.cuh"

namespace warproll::cluster_linear_detail {

// F16 in tile order: eight lanes a token's panel, four tokens at a time. A lane has pair t of each eight
// columns.
template <class S>
__device__ __forceinline__ void read_tiles(const Params& p, const Shared<S>& shared, int warp) {
  constexpr int kTokensAtOnce = 32 / kGranules;
  constexpr int kItems = (S::kTokens / kTokensAtOnce * S::kPanels + S::kWarps - 1) / S::kWarps;
  constexpr int kAtOnce = std::min(kItems, 16);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int granule = lane % kGranules;
  const uint4* x = p.x + static_cast<int>(ptx::cluster_rank()) * S::kPanels * kGranules + granule;
  if (threadIdx.x < p.num_tokens) shared.scales[threadIdx.x] = p.x_scales[threadIdx.x];
  const auto token_of = [&](int item) {
    return item / S::kPanels * kTokensAtOnce + lane / kGranules;
  };
#pragma unroll
  for (int done = 0; done < kItems; done += kAtOnce) {
    uint4 v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int item = warp + (done + i) * S::kWarps;
      // Past the last: a copy of it.
      const int64_t token = min(token_of(item), p.num_tokens - 1);
      v[i] = x[token * (S::kCols / 8) + item % S::kPanels * kGranules];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int item = warp + (done + i) * S::kWarps, token = token_of(item);
      if (token >= p.num_tokens) continue;
      std::byte* to = shared.x + item % S::kPanels * S::kPanelBytes + token * 128 +
                      ((granule & 4) ^ (token & 4)) * 16 + granule % 4 * 4;
      const uint32_t words[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
      for (int w = 0; w < 4; ++w)
        *reinterpret_cast<uint32_t*>(to + (w ^ token % 4) * 16) = words[w];
    }
  }
}

__device__ __forceinline__ uint32_t max_of_pairs(uint32_t a, uint32_t b) {
  return __vmaxu2(a, b & 0x7fff7fffu);
}
// Of a warp's BF16 values; `pairs`: max_of_pairs() of a lane's.
__device__ __forceinline__ float max_of_warp(uint32_t pairs) {
  return __uint_as_float(__reduce_max_sync(~0u, max(pairs << 16, pairs & 0xffff0000u)));
}
__device__ __forceinline__ uint32_t pair_to_f16(uint32_t pair) {
  const __half2 halves =
      __floats2half2_rn(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  return *reinterpret_cast<const uint32_t*>(&halves);
}
__device__ __forceinline__ uint32_t times(uint32_t pair, __nv_bfloat162 factor) {
  const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair), factor);
  return *reinterpret_cast<const uint32_t*>(&product);
}

// BF16 rows, a warp a token. A token's columns of this CTA get a scale of their own.
template <class S>
__device__ __forceinline__ void read_bf16(const Params& p, const Shared<S>& shared, int warp) {
  constexpr int kOfLane = S::kPanels * kGranules / 32;
  constexpr int kOfWarp = (S::kTokens + S::kWarps - 1) / S::kWarps;
  static_assert(kOfWarp * kOfLane <= 16);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint4* x = p.x + static_cast<int>(ptx::cluster_rank()) * S::kPanels * kGranules + lane;
  uint4 v[kOfWarp][kOfLane];
#pragma unroll
  for (int i = 0; i < kOfWarp; ++i) {
    // Past the last: a copy of it.
    const int64_t token = min(warp + i * S::kWarps, p.num_tokens - 1);
#pragma unroll
    for (int j = 0; j < kOfLane; ++j) v[i][j] = x[token * (S::kCols / 8) + j * 32];
  }
  float scales[kOfWarp];
#pragma unroll
  for (int i = 0; i < kOfWarp; ++i) {
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < kOfLane; ++j) {
      largest = max_of_pairs(max_of_pairs(largest, v[i][j].x), v[i][j].y);
      largest = max_of_pairs(max_of_pairs(largest, v[i][j].z), v[i][j].w);
    }
    scales[i] = moe::activation_scale(max_of_warp(largest));
  }
#pragma unroll
  for (int i = 0; i < kOfWarp; ++i) {
    const int token = warp + i * S::kWarps;
    if (token >= p.num_tokens) break;
    if (lane == 0) shared.scales[token] = scales[i];
    if (scales[i] != 1.0f) {
      // A power of two's inverse: exact.
      const __nv_bfloat162 inverse =
          __float2bfloat162_rn(__uint_as_float(0x7f000000u - __float_as_uint(scales[i])));
#pragma unroll
      for (uint4& four : v[i]) {
        four = make_uint4(times(four.x, inverse), times(four.y, inverse), times(four.z, inverse),
                          times(four.w, inverse));
      }
    }
#pragma unroll
    for (int j = 0; j < kOfLane; ++j) {
      std::byte* panel = shared.x + (lane + j * 32) / kGranules * S::kPanelBytes + token * 128;
      *reinterpret_cast<uint4*>(panel + (lane % kGranules ^ token % 8) * 16) =
          make_uint4(pair_to_f16(v[i][j].x), pair_to_f16(v[i][j].y), pair_to_f16(v[i][j].z),
                     pair_to_f16(v[i][j].w));
    }
  }
}

template <class S>
__device__ __forceinline__ void read_x(const Params& p, const Shared<S>& shared, int warp) {
  if constexpr (S::kBf16) {
    read_bf16(p, shared, warp);
  } else {
    read_tiles(p, shared, warp);
  }
  ptx::fence_async_proxy();
  ptx::sync_threads(1, S::kWarps * 32);
}

}  // namespace warproll::cluster_linear_detail
