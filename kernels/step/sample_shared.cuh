// What the CTAs of a sampling cluster share, and the sums and searches of one CTA or warp.
// Internal to kernels/step/sample*.
#pragma once

#include <cooperative_groups.h>

#include "kernels/cuda/ptx.cuh"
#include "kernels/step/sample.h"
#include "kernels/step/sample_order.cuh"

namespace warproll {
namespace {

namespace cg = cooperative_groups;
using step::kBins;
using step::Mass;
using step::Query;
using step::RowScale;

constexpr int kCtas = 8;  // of a cluster
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kCapacity = 2 * kThreads;  // tokens the leader sorts
constexpr int kSplit = kThreads;         // parts of a bin that has more
constexpr int kSplitBits = 9;
static_assert(kSplit == 1 << kSplitBits && kBins == 2 * kThreads);

struct Tally {
  uint32_t count;
  Mass mass;
};

// Sums of integers below 2^64, in 32-bit halves that shared memory can add to atomically.
struct Histogram {
  uint32_t count[kBins], low[kBins], high[kBins];
};

// Tokens of one bin whose keys are in [first_key, last_key].
struct Window {
  int bin;
  uint32_t count;
  uint64_t first_key, last_key;
  Tally before;  // the order's tokens ahead of it
};

struct Found {
  uint64_t key;
  uint32_t rank;  // from 1
  double mass;    // of the order's tokens up to and including it
};

struct KeyRange {
  uint64_t first, last;
};

struct Extremes {
  uint64_t best_key;  // ~0: every logit is -inf
  float least;
  bool has_nan;
};

struct alignas(16) Shared {
  union {
    Histogram histogram;
    uint64_t candidates[kCapacity];  // leader
  };
  Mass mass_to[kBins];       // leader: up to and including the bin
  uint32_t count_to[kBins];  // leader
  Tally warp_tally[kWarps];
  Extremes warp_extremes[kWarps];
  KeyRange warp_range[kWarps];
  double warp_raw[kWarps];
  // Read by the whole cluster.
  Extremes extremes;
  KeyRange range;
  double raw;
  uint32_t kept;  // by min-p
  Window window;  // leader
  Found found;    // leader
  uint32_t least_kept, num_candidates;
};

__device__ __forceinline__ uint64_t shuffle_xor(uint64_t v, int lanes) {
  return __shfl_xor_sync(~0u, static_cast<unsigned long long>(v), lanes);
}

// Adds `weights` of `count` tokens to a bin.
__device__ __forceinline__ void add(Histogram& h, int bin, uint32_t count, uint64_t weights) {
  const auto low = static_cast<uint32_t>(weights);
  atomicAdd(&h.count[bin], count);
  const uint32_t old = atomicAdd(&h.low[bin], low);
  const uint32_t carry = old + low < low ? 1 : 0;
  atomicAdd(&h.high[bin], static_cast<uint32_t>(weights >> 32) + carry);
}

// Of the tokens of all threads before this one. Whole CTA.
__device__ Tally tally_before(const Tally& mine, Tally* warp_tally) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  Tally sum = mine;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const uint32_t count = __shfl_up_sync(~0u, sum.count, static_cast<unsigned>(lanes));
    const auto low = static_cast<uint64_t>(__shfl_up_sync(
        ~0u, static_cast<unsigned long long>(sum.mass), static_cast<unsigned>(lanes)));
    const auto high = static_cast<uint64_t>(__shfl_up_sync(
        ~0u, static_cast<unsigned long long>(sum.mass >> 64), static_cast<unsigned>(lanes)));
    if (lane >= lanes) {
      sum.count += count;
      sum.mass += static_cast<Mass>(high) << 64 | low;
    }
  }
  __syncthreads();  // whoever read it last time has
  if (lane == 31) warp_tally[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) {
    sum.count += warp_tally[w].count;
    sum.mass += warp_tally[w].mass;
  }
  return {sum.count - mine.count, sum.mass - mine.mass};
}

// The bits, ascending, of the least logit that min-p keeps: by the words of kernels/sampling.h. Whole
// warp.
__device__ uint32_t least_kept_logit(float max_logit, double temperature, double min_p) {
  const uint32_t lane = threadIdx.x % 32;
  const double scaled_max = static_cast<double>(max_logit) / temperature;
  const auto keeps = [&](uint32_t ascending) {
    const auto logit = static_cast<double>(step::logit_of_ascending(ascending));
    return exp(logit / temperature - scaled_max) >= min_p;
  };
  uint32_t below = step::ascending_of(-INFINITY), kept = step::ascending_of(max_logit);
  while (kept - below > 1) {
    const uint32_t stride = (kept - below + 31) / 32;
    const uint32_t probe = min(below + stride * (lane + 1), kept);
    const auto first = static_cast<uint32_t>(__ffs(
                           static_cast<int>(__ballot_sync(~0u, probe == kept || keeps(probe))))) -
                       1;
    kept = min(below + stride * (first + 1), kept);
    below += stride * first;
  }
  return kept;
}

}  // namespace
}  // namespace warproll
