// One block of a record times activations, on the tensor cores. Internal to kernels/moe/*.cu.
#pragma once

#include "kernels/moe/fragment.cuh"
#include "kernels/moe/tiles.h"

namespace warproll::moe {

// Sums of a tile's rows with token columns 8i .. 8i + 7, in two chains that are added at the end.
// Activations of one term: the first and the second mma of every block. Of two terms (h): the terms.
template <int kTokenTiles>
struct TileSums {
  float first[kTokenTiles][4] = {};
  float second[kTokenTiles][4] = {};
};

// The lane's granules of one block of activations, of each of the terms that make up a value.
template <int kTerms, int kTokenTiles>
struct BlockActivations {
  uint4 term[kTerms][kTokenTiles];
};

// How the products of a block go into the chains of TileSums.
enum class Chains {
  kSteps,   // one term: the two mma
  kTerms,   // two terms
  kPacked,  // two terms, the second one's columns behind the first one's: all into `first`
};

template <Chains kChains, int kTerms, int kTokenTiles>
__device__ __forceinline__ void multiply_tile(const uint32_t (&a)[8],
                                              const BlockActivations<kTerms, kTokenTiles>& x, int i,
                                              float (&first)[4], float (&second)[4]) {
  ptx::mma_16816(first, a[0], a[1], a[2], a[3], x.term[0][i].x, x.term[0][i].y);
  ptx::mma_16816(kChains == Chains::kSteps ? second : first, a[4], a[5], a[6], a[7], x.term[0][i].z,
                 x.term[0][i].w);
  if constexpr (kTerms == 2) {
    ptx::mma_16816(second, a[0], a[1], a[2], a[3], x.term[1][i].x, x.term[1][i].y);
    ptx::mma_16816(second, a[4], a[5], a[6], a[7], x.term[1][i].z, x.term[1][i].w);
  }
}

// sums += the block at `at` times x.
template <TileFormat kFormat, Chains kChains, int kTerms, int kTokenTiles>
__device__ __forceinline__ void multiply_block(const std::byte* at,
                                               const BlockActivations<kTerms, kTokenTiles>& x,
                                               TileSums<kTokenTiles>& sums) {
  uint32_t a[8];
  load_block<kFormat>(at, a);
#pragma unroll
  for (int i = 0; i < kTokenTiles; ++i) {
    if constexpr (kFormat == TileFormat::kFp8Block) {
      const float2 scale = *reinterpret_cast<const float2*>(at + 512);
      float first[4] = {}, second[4] = {};
      multiply_tile<kChains>(a, x, i, first, second);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float s = j < 2 ? scale.x : scale.y;
        sums.first[i][j] = fmaf(s, first[j], sums.first[i][j]);
        sums.second[i][j] = fmaf(s, second[j], sums.second[i][j]);
      }
    } else {
      multiply_tile<kChains>(a, x, i, sums.first[i], sums.second[i]);
    }
  }
}

// first = (first + second chain) times the row scales. Packed, the second one is the first's columns
// 4 .. 7: two lanes on.
template <Chains kChains>
__device__ __forceinline__ void add_chains(float (&first)[4], const float (&second)[4], float low,
                                           float high) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float other = kChains == Chains::kPacked ? __shfl_down_sync(~0u, first[j], 2) : second[j];
    first[j] = (first[j] + other) * (j < 2 ? low : high);
  }
}

}  // namespace warproll::moe
