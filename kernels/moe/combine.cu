// combine: grid (H / 512, T), block 128 threads. A thread produces four outputs of a token: the K
// partials in k order, times the routing weights.
#include "kernels/moe/combine.cuh"

namespace warproll::moe {
namespace {

constexpr int kThreads = 128;
constexpr int kCols = 4;  // a thread

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
  store_outputs(p.y, p.y_f32, static_cast<int64_t>(token) * p.hidden_size + col,
                sum_of_partials(weights, at, p.hidden_size, p.top_k));
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
