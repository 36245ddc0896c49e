// top_k_of_token: a token's ids and weights from its logits, by one warp. Internal to kernels/moe/*.cu.
#pragma once

#include "kernels/moe/route.h"
#include "kernels/router.h"

namespace warproll::moe {

// Floats in the order of unsigned integers; 0 is below all of them, NaN above.
__device__ __forceinline__ uint32_t ordered(float v) {
  const uint32_t bits = __float_as_uint(v + 0.0f);  // -0 is 0, NaN has no sign
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float unordered(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

struct Chosen {
  int id = 0;  // of place `lane`, lanes 0 .. K - 1
  float weight = 0.0f;
};

// kPerLane: logits a lane looks at, of experts i * 32 + lane. `logits`: of this token.
template <int kPerLane>
__device__ __forceinline__ Chosen top_k_of_token(const RouteParams& p, const float* logits,
                                                 int token) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t key[kPerLane];
  int expert[kPerLane];
  float value[kPerLane];
  uint32_t first = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    expert[i] = i * 32 + lane;
    const bool there = expert[i] < p.num_experts;
    value[i] = there ? logits[expert[i]] : 0.0f;
    key[i] = there ? ordered(value[i]) : 0;
    first = max(first, key[i]);
  }
  const float largest = unordered(__reduce_max_sync(~0u, first));
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) total += key[i] != 0 ? expf(value[i] - largest) : 0.0f;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(~0u, total, step);

  Chosen chosen;
  const int64_t out = static_cast<int64_t>(token) * p.top_k;
  if (p.given_ids != nullptr) {
    if (lane < p.top_k) {
      chosen.id = p.given_ids[out + lane];
      const bool valid = chosen.id >= 0 && chosen.id < p.num_experts;
      chosen.weight = p.given_weights != nullptr ? p.given_weights[out + lane]
                      : valid                    ? expf(logits[chosen.id] - largest) / total
                                                 : 0.0f;
    }
  } else {
    // By logits, which order experts as probabilities do and more finely. NaN comes first, so that it
    // shows in the weights. A lane's own in order first (stable: the lowest expert of equals leads).
#pragma unroll
    for (int end = kPerLane - 1; end > 0; --end) {
#pragma unroll
      for (int i = 0; i < end; ++i) {
        const bool swap = key[i + 1] > key[i];
        const uint32_t k = key[i];
        const int e = expert[i];
        key[i] = swap ? key[i + 1] : k, key[i + 1] = swap ? k : key[i + 1];
        expert[i] = swap ? expert[i + 1] : e, expert[i + 1] = swap ? e : expert[i + 1];
      }
    }
    uint32_t my_key = 0;
    for (int k = 0; k < p.top_k; ++k) {
      const uint32_t winner = __reduce_max_sync(~0u, key[0]);
      const unsigned lanes = __ballot_sync(~0u, key[0] == winner);
      int source = __ffs(static_cast<int>(lanes)) - 1;
      if ((lanes & (lanes - 1)) != 0) {  // equals in several lanes
        const int lowest = __reduce_min_sync(~0u, key[0] == winner ? expert[0] : kPerLane * 32);
        source = lowest % 32;
      }
      const int id = __shfl_sync(~0u, expert[0], source);
      if (lane == k) chosen.id = id, my_key = winner;
      if (lane == source) {
#pragma unroll
        for (int i = 0; i + 1 < kPerLane; ++i) key[i] = key[i + 1], expert[i] = expert[i + 1];
        key[kPerLane - 1] = 0;
      }
    }
    if (lane < p.top_k) chosen.weight = expf(unordered(my_key) - largest) / total;
  }
  if (p.renormalise && p.given_weights == nullptr) {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < kMaxTopK; ++k) {
      const float weight = __shfl_sync(~0u, chosen.weight, k);
      sum = k < p.top_k ? sum + weight : sum;
    }
    chosen.weight /= sum;
  }
  return chosen;
}

__device__ __forceinline__ void store_chosen(const RouteParams& p, int token,
                                             const Chosen& chosen) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane >= p.top_k) return;
  p.topk_ids[static_cast<int64_t>(token) * p.top_k + lane] = chosen.id;
  p.topk_weights[static_cast<int64_t>(token) * p.top_k + lane] = chosen.weight;
}

// Called by all threads of a CTA once its part of the ids is stored: whether it is the last of
// `ctas` to do so. It then sees all of them. Leaves 0 for the next time.
__device__ __forceinline__ bool is_last_cta(unsigned* finished_ctas, unsigned ctas) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(finished_ctas, ctas - 1) == ctas - 1;
  __syncthreads();
  if (last) __threadfence();
  return last;
}

}  // namespace warproll::moe
