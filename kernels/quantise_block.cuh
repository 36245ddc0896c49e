// quantise_eights: a CTA's share of a matrix, eight columns of a block of 32 by one lane; four neighbouring
// lanes have a block. Internal to kernels/*.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/quantise.h"

namespace warproll {

inline constexpr int kQuantiseThreads = 256;
inline constexpr int kQuantisePerThread = 4;  // times eight columns
inline constexpr int64_t kQuantiseEights = kQuantiseThreads * kQuantisePerThread;  // of a CTA

inline int64_t num_quantise_ctas(const QuantiseMxfp8Params& matrix) {
  return (matrix.rows * matrix.cols / 8 + kQuantiseEights - 1) / kQuantiseEights;
}

// Source elements of a lane as they lie in memory.
template <typename Source>
struct alignas(16) EightSources {
  Source values[8];
};

template <typename Source>
__device__ EightSources<Source> load_eight(const std::byte* source, int64_t eight) {
  return reinterpret_cast<const EightSources<Source>*>(source)[eight];
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// Columns [8 eight, 8 eight + 8) of the matrix as one row. All lanes of the warp take part; `writes`:
// whether this lane's block is one of the matrix. first_non_finite may be null.
template <typename Source>
__device__ void quantise_eight(const QuantiseMxfp8Params& p, const EightSources<Source>& source,
                               int64_t eight, bool writes, unsigned long long* first_non_finite) {
  constexpr uint32_t kInf = 0x7f800000u;
  float x[8];
  uint32_t largest = 0;
  int bad = 8;  // the first that is not finite
#pragma unroll
  for (int i = 7; i >= 0; --i) {
    x[i] = to_float(source.values[i]);
    const uint32_t magnitude = __float_as_uint(x[i]) & 0x7fffffffu;
    largest = max(largest, magnitude);
    if (magnitude >= kInf) bad = i;
  }
  largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
  if (!writes) return;
  const bool finite = largest < kInf;
  const int scale = finite ? max(static_cast<int>(largest >> 23) - 8, 0) : 255;  // 448 = 1.75 * 2^8
  const float inverse = __uint_as_float(static_cast<uint32_t>(254 - scale) << 23);
  uint2 out = {0, 0};
  if (finite) {
    uint32_t words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t element = __nv_cvt_float_to_fp8(x[i] * inverse, __NV_SATFINITE, __NV_E4M3);
      words[i / 4] |= element << (i % 4 * 8);
    }
    out = {words[0], words[1]};
  } else if (bad < 8 && first_non_finite != nullptr) {
    atomicMin(first_non_finite, static_cast<unsigned long long>(eight * 8 + bad));
  }
  reinterpret_cast<uint2*>(p.elements)[eight] = out;
  if (threadIdx.x % 4 == 0) p.scales[eight / 4] = static_cast<uint8_t>(scale);
}

// A CTA's eights, from `begin` on and below `end`.
template <typename Source>
__device__ void quantise_eights(const QuantiseMxfp8Params& p, int64_t begin, int64_t end,
                                unsigned long long* first_non_finite) {
  EightSources<Source> sources[kQuantisePerThread];
#pragma unroll
  for (int i = 0; i < kQuantisePerThread; ++i) {
    const int64_t eight = begin + i * kQuantiseThreads + threadIdx.x;
    sources[i] = load_eight<Source>(p.source, min(eight, end - 1));
  }
#pragma unroll
  for (int i = 0; i < kQuantisePerThread; ++i) {
    const int64_t eight = begin + i * kQuantiseThreads + threadIdx.x;
    quantise_eight(p, sources[i], eight, eight < end, first_non_finite);
  }
}

}  // namespace warproll
