// combine: grid (H / 512, T), block 128 threads. A thread produces four outputs of a token: the K
// partials in k order, times the routing weights.
#include <cuda_bf16.h>

#include "kernels/cuda/ptx.cuh"
#include "kernels/moe/launch.cuh"

namespace warproll::moe {
namespace {

constexpr int kThreads = 128;
constexpr int kCols = 4;   // a thread
constexpr int kAhead = 8;  // partials under way at once

// Where it stands, whatever becomes of the value.
__device__ __forceinline__ float4 load_now(const float* from) {
  float4 v;
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from));
  return v;
}

struct CombineParams {
  const float* partials;      // [T * K, H]
  const float* pair_weights;  // [T * K]; 0: the pair has no expert and no partial
  __nv_bfloat16* y;           // [T, H]
  float* y_f32;               // instead of y, or null
  ExpertListCounts* counts;
  int top_k, hidden_size;
};

__global__ void __launch_bounds__(kThreads, 1) combine_kernel(CombineParams p) {
  const int col = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * kCols;
  const int token = static_cast<int>(blockIdx.y);
  ptx::wait_for_previous_kernel();
  ptx::allow_next_kernel();
  if (blockIdx.x == 0 && token == 0 && threadIdx.x == 0) p.counts->next_down = 0;
  if (col >= p.hidden_size) return;
  const float* weights = p.pair_weights + static_cast<int64_t>(token) * p.top_k;
  const float* at = p.partials + static_cast<int64_t>(token) * p.top_k * p.hidden_size + col;
  float4 sum = {};
  for (int k0 = 0; k0 < p.top_k; k0 += kAhead) {
    // All loads first. Left to itself the compiler loads behind a test of the weight, one by one.
    float4 v[kAhead];
    float weight[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int k = min(k0 + i, p.top_k - 1);
      weight[i] = k0 + i < p.top_k ? weights[k] : 0.0f;
      v[i] = load_now(at + static_cast<int64_t>(k) * p.hidden_size);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (weight[i] != 0.0f) {
        sum = make_float4(fmaf(weight[i], v[i].x, sum.x), fmaf(weight[i], v[i].y, sum.y),
                          fmaf(weight[i], v[i].z, sum.z), fmaf(weight[i], v[i].w, sum.w));
      }
    }
  }
  constexpr float kUp = 1.0f / kHiddenScale;
  const int64_t out = static_cast<int64_t>(token) * p.hidden_size + col;
  if (p.y_f32 != nullptr) {
    *reinterpret_cast<float4*>(p.y_f32 + out) =
        make_float4(sum.x * kUp, sum.y * kUp, sum.z * kUp, sum.w * kUp);
  } else {
    __nv_bfloat162 two[2] = {__floats2bfloat162_rn(sum.x * kUp, sum.y * kUp),
                             __floats2bfloat162_rn(sum.z * kUp, sum.w * kUp)};
    *reinterpret_cast<uint2*>(p.y + out) = *reinterpret_cast<const uint2*>(two);
  }
}

}  // namespace

void launch_combine(const WarpDecodeParams& p, cudaStream_t stream) {
  const int hidden = p.gate_up.cols;
  LaunchConfig config(
      dim3(static_cast<unsigned>((hidden + kThreads * kCols - 1) / (kThreads * kCols)),
           static_cast<unsigned>(p.num_tokens)),
      kThreads, 0, stream);
  config.programmatic();
  config.run(combine_kernel, CombineParams{.partials = p.partials,
                                           .pair_weights = p.lists.pair_weights,
                                           .y = reinterpret_cast<__nv_bfloat16*>(p.y),
                                           .y_f32 = p.y_f32,
                                           .counts = p.lists.counts,
                                           .top_k = p.top_k,
                                           .hidden_size = hidden});
}

}  // namespace warproll::moe
