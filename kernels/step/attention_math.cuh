// The arithmetic of attention that every path shares, and what its bits depend on: chunks, splits,
// groups, and the order of every sum. All F32 operations are named (_rn), so that no compiler fuses
// them here and not there. Fragments: g = lane / 4, t = lane % 4; a lane holds columns 2t, 2t + 1 of
// rows g (half 0) and g + 8 (half 1). Internal to kernels/step/attention*.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/ptx.cuh"
#include "kernels/step/attention.h"
#include "kernels/step/attention_ptx.cuh"

namespace warproll::attention {

inline constexpr int kChunk = 64;               // positions between two rescalings
inline constexpr int kSplit = kAttentionSplit;  // positions of one online softmax
inline constexpr int kGroupSplits = 8;
inline constexpr int kGroup = kGroupSplits * kSplit;
inline constexpr int kThreads = 128;
inline constexpr int kWarps = kThreads / 32;
static_assert(kSplit % kChunk == 0);

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

// How two sums with maxima `max` and `other` (log2) join: times own and times its.
struct FoldFactors {
  float own, its;
};
__device__ __forceinline__ FoldFactors fold_max(float& max, float other) {
  const float joint = fmaxf(max, other);
  const float reference = joint == minus_infinity() ? 0.0f : joint;  // both are empty
  const FoldFactors f = {ptx::exp2_approx(__fsub_rn(max, reference)),
                         ptx::exp2_approx(__fsub_rn(other, reference))};
  max = joint;
  return f;
}
__device__ __forceinline__ float fold(float own, float its, FoldFactors f) {
  return __fmaf_rn(its, f.its, __fmul_rn(own, f.own));
}

// out = acc / sum. The sign of a zero is the only thing that fully masked chunks can change.
__device__ __forceinline__ float divide(float acc, float reciprocal) {
  return __fadd_rn(__fmul_rn(acc, reciprocal), 0.0f);
}

// A lane's part of softmax sums over some positions: two rows, kTiles * 8 dimensions.
template <int kTiles>
struct Sums {
  float max[2], sum[2];
  float acc[kTiles][4];

  __device__ __forceinline__ void reset() {
    for (int h = 0; h < 2; ++h) {
      max[h] = minus_infinity();
      sum[h] = 0.0f;
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[n][i] = 0.0f;
    }
  }

  template <bool kHigh>
  __device__ __forceinline__ void fold_in(const Sums& other) {
#pragma unroll
    for (int h = 0; h < (kHigh ? 2 : 1); ++h) {
      const FoldFactors f = fold_max(max[h], other.max[h]);
      sum[h] = fold(sum[h], other.sum[h], f);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) acc[n][i] = fold(acc[n][i], other.acc[n][i], f);
      }
    }
  }

  // Until here a lane has the sum of its own columns.
  template <bool kHigh>
  __device__ __forceinline__ void finish_split() {
#pragma unroll
    for (int h = 0; h < (kHigh ? 2 : 1); ++h) {
      sum[h] = __fadd_rn(sum[h], __shfl_xor_sync(~0u, sum[h], 1));
      sum[h] = __fadd_rn(sum[h], __shfl_xor_sync(~0u, sum[h], 2));
    }
  }
};

// Positions behind last[half] have probability 0. `first` is that of the scores.
template <int kCount>
__device__ __forceinline__ void mask_scores(float (&s)[kCount][4], int first, int half, int last) {
  const int column = first + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (column + 8 * j + i > last) s[j][2 * half + i] = minus_infinity();
    }
  }
}

// Masked scores of a chunk become probabilities relative to the new max; max, sum and acc move to it.
// kHigh: rows 8 .. 15 are in use.
template <bool kHigh, int kTiles>
__device__ __forceinline__ void softmax_chunk(float (&s)[8][4], float scale_log2,
                                              Sums<kTiles>& sums) {
#pragma unroll
  for (int h = 0; h < (kHigh ? 2 : 1); ++h) {
    float top = minus_infinity();
#pragma unroll
    for (int j = 0; j < 8; ++j) top = fmaxf(top, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const float max = fmaxf(sums.max[h], __fmul_rn(top, scale_log2));
    const float reference = max == minus_infinity() ? 0.0f : max;  // nothing of this row yet
    const float rescale = ptx::exp2_approx(__fsub_rn(sums.max[h], reference));
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 2 * h; i < 2 * h + 2; ++i) {
        s[j][i] = ptx::exp2_approx(__fmaf_rn(s[j][i], scale_log2, -reference));
      }
      sum = __fadd_rn(sum, __fadd_rn(s[j][2 * h], s[j][2 * h + 1]));
    }
    sums.max[h] = max;
    sums.sum[h] = __fmaf_rn(sums.sum[h], rescale, sum);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 2 * h; i < 2 * h + 2; ++i) sums.acc[n][i] = __fmul_rn(sums.acc[n][i], rescale);
    }
  }
}

// Two floats as BF16 pairs that add up to them, to 16 bits.
__device__ __forceinline__ void split_bf16(float a, float b, uint32_t& high, uint32_t& low) {
  const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
  const __nv_bfloat162 l =
      __floats2bfloat162_rn(__fsub_rn(a, __low2float(h)), __fsub_rn(b, __high2float(h)));
  high = *reinterpret_cast<const uint32_t*>(&h);
  low = *reinterpret_cast<const uint32_t*>(&l);
}

// Rows of kD BF16 in shared memory. 16-byte pieces of a row are permuted by its index, so that the
// eight rows of an 8x8 matrix lie in different banks.
template <int kD>
__device__ __forceinline__ uint32_t piece_address(uint32_t rows, int row, int piece) {
  return rows + static_cast<uint32_t>(row * kD * 2 + (piece ^ (row & 7)) * 16);
}

// Zero, as a value of its own: where a constant is an operand of mma it is copied there each time.
__device__ __forceinline__ uint32_t zero_register() {
  uint32_t zero;
  asm volatile("mov.b32 %0, 0;" : "=r"(zero));
  return zero;
}

// s[2i], s[2i + 1] += Q K^T for the 16 positions from `row` on; `a` is columns 16 step .. of Q.
template <int kD>
__device__ __forceinline__ void multiply_keys(uint32_t keys, int row, int step,
                                              const uint32_t (&a)[4], float (&s0)[4],
                                              float (&s1)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t b[4];
  ptx::ldmatrix_x4(
      b, piece_address<kD>(keys, row + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
  ptx::mma_16816_bf16(s0, a[0], a[1], a[2], a[3], b[0], b[1]);
  ptx::mma_16816_bf16(s1, a[0], a[1], a[2], a[3], b[2], b[3]);
}

// acc += P V over a chunk, for dimensions 8 * piece .. + 8 * kTiles. Sixteen positions after the
// other; of each first the high, then the low parts of P.
template <int kD, bool kHigh, int kTiles>
__device__ __forceinline__ void multiply_values(const float (&p)[8][4], uint32_t values, int piece,
                                                float (&acc)[kTiles][4]) {
  static_assert(kTiles % 2 == 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 0; step < kChunk / 16; ++step) {
    uint32_t high[4] = {}, low[4] = {};
    split_bf16(p[2 * step][0], p[2 * step][1], high[0], low[0]);
    split_bf16(p[2 * step + 1][0], p[2 * step + 1][1], high[2], low[2]);
    if (kHigh) {
      split_bf16(p[2 * step][2], p[2 * step][3], high[1], low[1]);
      split_bf16(p[2 * step + 1][2], p[2 * step + 1][3], high[3], low[3]);
    }
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t b[4];
      ptx::ldmatrix_x4_trans(
          b, piece_address<kD>(values, 16 * step + lane % 16, piece + n + lane / 16));
      ptx::mma_16816_bf16(acc[n], high[0], high[1], high[2], high[3], b[0], b[1]);
      ptx::mma_16816_bf16(acc[n + 1], high[0], high[1], high[2], high[3], b[2], b[3]);
      ptx::mma_16816_bf16(acc[n], low[0], low[1], low[2], low[3], b[0], b[1]);
      ptx::mma_16816_bf16(acc[n + 1], low[0], low[1], low[2], low[3], b[2], b[3]);
    }
  }
}

}  // namespace warproll::attention
