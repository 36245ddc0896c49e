// stream_linear: x as the norm of a residual stream, by the multiplying warps before they multiply.
// Internal to kernels/step/*.cu.
#pragma once

#include "kernels/moe/convert_activations.cuh"
#include "kernels/step/stream_linear_shared.cuh"

namespace warproll::stream_linear_detail {

// As many threads as a CTA of add_rmsnorm has take a token, and do what that one does.
class NormProlog {
 public:
  // Before the previous kernel has ended.
  __device__ __forceinline__ explicit NormProlog(const Params& p) : p_(p) {
    thread_.load_weight(p.norm, me_);
  }

  __device__ __forceinline__ void run(NormRows& shared) const {
    if (token_ < p_.num_tokens) normalise(shared);
    ptx::sync_threads(kAll, kMaxNormTokens * Thread::kThreads);
  }

 private:
  using Thread = step::NormThread;
  static constexpr int kAll = 1 + kMaxNormTokens;  // barriers; a token's is 1 + token

  __device__ __forceinline__ void normalise(NormRows& shared) const {
    const int warp = me_ / 32;
    uint2 x[Thread::kGranules];
    const float squares =
        step::sum_of_warp(Thread::add(p_.norm, Thread::load(p_.norm, token_, me_), x));
    if (me_ % 32 == 0) shared.sums[token_][warp] = squares;
    ptx::sync_threads(1 + token_, Thread::kThreads);
    if (blockIdx.x == 0 && p_.norm.hidden_out != nullptr)
      Thread::store(p_.norm.hidden_out, token_, me_, x);
    thread_.normalise(p_.norm, shared.sums[token_], x);
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < Thread::kGranules; ++i)
      largest = fmaxf(largest, step::largest_of_granule(x[i]));
    largest = step::max_of_warp(largest);
    if (me_ % 32 == 0) shared.largest[token_][warp] = largest;
    ptx::sync_threads(1 + token_, Thread::kThreads);
#pragma unroll
    for (int w = 0; w < Thread::kWarps; ++w) largest = fmaxf(largest, shared.largest[token_][w]);
    const float scale = moe::activation_scale(largest);
    const float inverse = 1.0f / scale;
    if (me_ == 0) shared.scales[token_] = scale;
    auto* row = reinterpret_cast<uint16_t*>(shared.rows[token_]);
#pragma unroll
    for (int i = 0; i < Thread::kGranules; ++i)
      step::store_tile_granule(row, Thread::column(me_, i), x[i], inverse);
  }

  const Params& p_;
  const int me_ = static_cast<int>(threadIdx.x) % Thread::kThreads;
  const int token_ = static_cast<int>(threadIdx.x) / Thread::kThreads;
  Thread thread_;
};

}  // namespace warproll::stream_linear_detail
