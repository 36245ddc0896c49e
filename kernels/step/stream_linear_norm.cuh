// stream_linear: x as the norm of a residual stream, by the multiplying warps before they multiply.
// Internal to kernels/step/*.cu.
#pragma once

#include "kernels/moe/convert_activations.cuh"
#include "kernels/step/stream_linear_shared.cuh"

namespace warproll::stream_linear_detail {

// As many threads as a CTA of add_rmsnorm has take a token, and do what that one does. kAtOnce: so many
// tokens have threads of their own; the others come after them.
template <int kAtOnce>
class NormProlog {
 public:
  // Before the previous kernel has ended.
  __device__ __forceinline__ explicit NormProlog(const Params& p) : p_(p) {
    thread_.load_weight(p.norm, me_);
  }

  __device__ __forceinline__ void run(NormRows& shared) const {
    typename Thread::Loaded loaded[kTurns];
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if (token_of(i) < p_.num_tokens) loaded[i] = Thread::load(p_.norm, token_of(i), me_);
    }
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if (token_of(i) < p_.num_tokens) normalise(shared, token_of(i), loaded[i]);
    }
    ptx::sync_threads(kAll, kAtOnce * Thread::kThreads);
  }

 private:
  using Thread = step::NormThread;
  static constexpr int kTurns = kMaxNormTokens / kAtOnce;
  // Barriers: of a token's threads, and of all; known here where they are the same. A kernel whose barriers
  // are not takes all sixteen.
  static constexpr bool kSame = kAtOnce == 1;
  static constexpr int kAll = kSame ? 0 : 1 + kMaxNormTokens;
  static __device__ __forceinline__ void sync_token(int token) {
    ptx::sync_threads(kSame ? kAll : 1 + token, Thread::kThreads);
  }

  __device__ __forceinline__ int token_of(int turn) const { return turn * kAtOnce + first_token_; }

  __device__ __forceinline__ void normalise(NormRows& shared, int token,
                                            const typename Thread::Loaded& loaded) const {
    const int warp = me_ / 32;
    uint2 x[Thread::kGranules];
    const float squares = step::sum_of_warp(Thread::add(p_.norm, loaded, x));
    if (me_ % 32 == 0) shared.sums[token][warp] = squares;
    sync_token(token);
    if (blockIdx.x == 0 && p_.norm.hidden_out != nullptr)
      Thread::store(p_.norm.hidden_out, token, me_, x);
    thread_.normalise(p_.norm, shared.sums[token], x);
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < Thread::kGranules; ++i)
      largest = fmaxf(largest, step::largest_of_granule(x[i]));
    largest = step::max_of_warp(largest);
    if (me_ % 32 == 0) shared.largest[token][warp] = largest;
    sync_token(token);
#pragma unroll
    for (int w = 0; w < Thread::kWarps; ++w) largest = fmaxf(largest, shared.largest[token][w]);
    const float scale = moe::activation_scale(largest);
    const float inverse = 1.0f / scale;
    if (me_ == 0) shared.scales[token] = scale;
    auto* row = reinterpret_cast<uint16_t*>(shared.rows[token]);
#pragma unroll
    for (int i = 0; i < Thread::kGranules; ++i)
      step::store_tile_granule(row, Thread::column(me_, i), x[i], inverse);
  }

  const Params& p_;
  const int me_ = static_cast<int>(threadIdx.x) % Thread::kThreads;
  const int first_token_ = kSame ? 0 : static_cast<int>(threadIdx.x) / Thread::kThreads;
  Thread thread_;
};

}  // namespace warproll::stream_linear_detail
