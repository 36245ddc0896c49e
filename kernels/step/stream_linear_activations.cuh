// stream_linear: a warp's share of the activations of a group of tokens, as B operands.
// Internal to kernels/step/*.cu.
#pragma once

#include <cuda_fp16.h>

#include "kernels/moe/convert_activations.cuh"
#include "kernels/step/stream_linear_shared.cuh"

namespace warproll::stream_linear_detail {

// Of four lanes with the pairs 4t .. 4t + 3 of a block's sixteen each: those at t, t + 4, t + 8, t + 12,
// as in tile order. A transposition in two exchanges.
__device__ __forceinline__ uint4 to_tile_order(uint4 v) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const auto exchange = [](uint32_t& a, uint32_t& b, bool mine, int distance) {
    const uint32_t other = __shfl_xor_sync(~0u, mine ? a : b, distance);
    a = mine ? other : a;
    b = mine ? b : other;
  };
  exchange(v.x, v.y, (t & 1) != 0, 1);
  exchange(v.z, v.w, (t & 1) != 0, 1);
  exchange(v.x, v.z, (t & 2) != 0, 2);
  exchange(v.y, v.w, (t & 2) != 0, 2);
  return v;
}

__device__ __forceinline__ float largest_of_pair(uint32_t two) {
  return fmaxf(__uint_as_float(two << 16 & 0x7fffffffu), __uint_as_float(two & 0x7fff0000u));
}
__device__ __forceinline__ float largest_of(uint4 v) {
  return fmaxf(fmaxf(largest_of_pair(v.x), largest_of_pair(v.y)),
               fmaxf(largest_of_pair(v.z), largest_of_pair(v.w)));
}
__device__ __forceinline__ uint32_t pair_to_f16(uint32_t two, float inverse) {
  const __half2 halves = __floats2half2_rn(__uint_as_float(two << 16) * inverse,
                                           __uint_as_float(two & 0xffff0000u) * inverse);
  return *reinterpret_cast<const uint32_t*>(&halves);
}
__device__ __forceinline__ uint4 to_f16(uint4 v, float inverse) {
  return make_uint4(pair_to_f16(v.x, inverse), pair_to_f16(v.y, inverse), pair_to_f16(v.z, inverse),
                    pair_to_f16(v.w, inverse));
}
// The scale of a token's columns that this warp has in a half; its four lanes agree.
__device__ __forceinline__ float scale_of(float largest) {
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
  return moe::activation_scale(largest);
}

// Lane 4g + t has the granules t of token g of each token tile, at blocks chain, chain + 8, .. of
// each half.
template <class S>
class Activations {
 public:
  // Once a group. x: a row every `row_granules`. first_half: of this warp.
  __device__ __forceinline__ void read(const Params& p, const uint4* x, int row_granules,
                                       int first_token, int first_half, int chain) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < S::kTilesOfWarp; ++i) {
      // Past the last: a copy of it.
      const int token = min(first_token + i * 8 + lane / 4, p.num_tokens - 1);
      rows_[i] = x + static_cast<int64_t>(token) * row_granules + lane % 4;
    }
#pragma unroll
    for (int h = 0; h < S::kHalvesOfWarp; ++h) {
      const int first = Columns<S>(p.weight).first(first_half + h);
#pragma unroll
      for (int step = 0; step < S::kHalfSteps; ++step) {
#pragma unroll
        for (int i = 0; i < S::kTilesOfWarp; ++i) {
          kept_[h][step][i] = rows_[i][(first + step * kChains + chain) * 4];
        }
      }
    }
    if constexpr (S::kBf16) {
#pragma unroll
      for (int h = 0; h < S::kHalvesOfWarp; ++h) convert(p, h, first_half + h, chain);
    }
  }

  // Block `block`, the warp's `step`-th of half h.
  __device__ __forceinline__ uint4 at(int h, int step, int i, int block) const {
    if constexpr (S::kHalfSteps > 0) return kept_[h][step][i];
    const uint4 v = rows_[i][block * 4];
    if constexpr (!S::kBf16) return v;
    return to_f16(to_tile_order(v), inverse_[h][i]);
  }
  // Of half h and column j, 0 or 1, of the lane's two of a product.
  __device__ __forceinline__ float scale(int h, int i, int j) const {
    if constexpr (S::kBf16) return scales_[h][i][j];
    return 1.0f;
  }

 private:
  __device__ __forceinline__ void convert(const Params& p, int h, int half, int chain) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < S::kTilesOfWarp; ++i) {
      float largest = 0.0f;
      if constexpr (S::kHalfSteps > 0) {
#pragma unroll
        for (int step = 0; step < S::kHalfSteps; ++step) {
          largest = fmaxf(largest, largest_of(kept_[h][step][i]));
        }
      } else {
        const Columns<S> columns(p.weight);
        for (int b = columns.first(half) + chain; b < columns.end(half); b += kChains) {
          largest = fmaxf(largest, largest_of(rows_[i][b * 4]));
        }
      }
      const float scale = scale_of(largest);
      inverse_[h][i] = 1.0f / scale;
#pragma unroll
      for (int step = 0; step < S::kHalfSteps; ++step) {
        kept_[h][step][i] = to_f16(to_tile_order(kept_[h][step][i]), inverse_[h][i]);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        scales_[h][i][j] = __shfl_sync(~0u, scale, (lane % 4 * 2 + j) * 4);
      }
    }
  }

  const uint4* rows_[S::kTilesOfWarp];
  uint4 kept_[S::kHalvesOfWarp][S::kHalfSteps == 0 ? 1 : S::kHalfSteps][S::kTilesOfWarp];
  float inverse_[S::kHalvesOfWarp][S::kTilesOfWarp];
  float scales_[S::kHalvesOfWarp][S::kTilesOfWarp][2];
};

}  // namespace warproll::stream_linear_detail
