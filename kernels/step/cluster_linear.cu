// cluster_linear. Grid: clusters of kSplit CTAs, one CTA an SM at most; block: kGroups warpgroups that
// multiply and a warp that loads. A cluster produces 16 outputs of every token with each tile of W.
#include "kernels/step/cluster_linear.h"

#include <string>

#include "kernels/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/step/cluster_linear_multiply.cuh"

namespace warproll {
namespace {

using namespace cluster_linear_detail;

constexpr int32_t kMaxTokens = 8192;
constexpr int32_t kLaunchTokens = 64;
constexpr int32_t kManyTiles = 1024;
constexpr int32_t kStreamedTokens = 16;

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    cluster_linear_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) std::byte memory[];
  const Shared<S> shared(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == S::kWarps * 32) shared.init_barriers(p.num_tokens);
  __syncthreads();
  ptx::cluster_arrive();  // our barriers stand
  if (warp == S::kWarps) {
    load_weights(p, shared);
    ptx::cluster_wait();
  } else {
    ptx::wait_for_previous_kernel();
    read_x(p, shared, warp);
    ptx::cluster_wait();
    Multiplier<S>(p, shared, warp).run();
  }
}

// Clusters that run side by side.
template <class S>
int max_clusters() {
  const int sms = num_multiprocessors();
  LaunchConfig config(dim3(static_cast<unsigned>(sms / S::kSplit * S::kSplit)), S::kThreads,
                      S::kBytes, nullptr);
  config.cluster(S::kSplit);
  return config.max_active_clusters(cluster_linear_kernel<S>);
}

template <class S>
void launch(const Params& p, cudaStream_t stream) {
  static const int at_once = max_clusters<S>();
  const int clusters = std::min(at_once, (p.weight.num_tiles + S::kTiles - 1) / S::kTiles);
  LaunchConfig config(dim3(static_cast<unsigned>(clusters * S::kSplit)), S::kThreads, S::kBytes,
                      stream);
  config.programmatic();
  config.all_shared();
  config.cluster(S::kSplit);
  config.run(cluster_linear_kernel<S>, p);
}

// As measured (docs/benchmarks/step.md). More CTAs in a cluster have less of x to read each, but more sums
// to exchange; with many tiles neither is what takes time.
template <int kTokens>
void launch_shape(const Params& p, cudaStream_t stream) {
  if (p.x_scales == nullptr) return launch<Shape<true, kTokens, 8, 8, 3, 3>>(p, stream);
  if (p.weight.num_tiles > kManyTiles) return launch<Shape<false, kTokens, 2, 16, 2, 4>>(p, stream);
  launch<Shape<false, kTokens, 4, 8, 3, 4>>(p, stream);
}

}  // namespace

bool can_cluster_linear(const TileMatrix& weight, bool x_is_tiles) {
  return weight.format == TileFormat::kF16 && weight.cols == (x_is_tiles ? 2048 : 4096);
}

bool cluster_linear_is_faster(int32_t num_tokens, const TileMatrix& weight, bool x_is_tiles) {
  return can_cluster_linear(weight, x_is_tiles) && num_tokens > kStreamedTokens &&
         num_tokens <= kLaunchTokens && weight.num_tiles <= kManyTiles;
}

void cluster_linear(const ClusterLinearParams& p, cudaStream_t stream) {
  const bool tiles = p.x.values != nullptr;
  check_argument(tiles ? p.x.scales != nullptr && p.x_bf16 == nullptr : p.x_bf16 != nullptr,
                 [] { return std::string("cluster linear: wanted x with its scales, or x_bf16"); });
  check_argument(
      can_cluster_linear(p.weight, tiles) && p.weight.num_experts == 1 && p.weight.num_tiles >= 1 &&
          p.num_tokens >= 0 && p.num_tokens <= kMaxTokens,
      [&] {
        return "cluster linear: T " + std::to_string(p.num_tokens) + ", W " +
               std::to_string(p.weight.num_experts) + " x " + std::to_string(p.weight.num_tiles) +
               " tiles of format " + std::to_string(static_cast<int>(p.weight.format)) + " over " +
               std::to_string(p.weight.cols) + "; wanted T 0 .. " + std::to_string(kMaxTokens) +
               ", one matrix of F16 tiles, columns " + (tiles ? "2048" : "4096, for BF16 x");
      });
  if (p.num_tokens == 0) return;
  check_argument(p.weight.data != nullptr && (p.y != nullptr || p.y_f32 != nullptr),
                 [] { return std::string("cluster linear: weight.data or y is null"); });
  const uint16_t* x = tiles ? p.x.values : p.x_bf16;
  check_argument(step::is_aligned(x) && step::is_aligned(p.y, 4) && step::is_aligned(p.y_f32, 4) &&
                     step::is_aligned(p.weight.data, 128),
                 [] { return std::string("cluster linear: a pointer is not aligned"); });
  const int64_t rows = int64_t{p.weight.num_tiles} * kTileRows;
  for (int32_t first = 0; first < p.num_tokens; first += kLaunchTokens) {
    const Params params = {
        .weight = p.weight,
        .x = reinterpret_cast<const uint4*>(x + int64_t{first} * p.weight.cols),
        .x_scales = tiles ? p.x.scales + first : nullptr,
        .y = reinterpret_cast<__nv_bfloat16*>(p.y == nullptr ? nullptr : p.y + first * rows),
        .y_f32 = p.y_f32 == nullptr ? nullptr : p.y_f32 + first * rows,
        .num_tokens = std::min(kLaunchTokens, p.num_tokens - first)};
    if (params.num_tokens <= kLaunchTokens / 2) {
      launch_shape<kLaunchTokens / 2>(params, stream);
    } else {
      launch_shape<kLaunchTokens>(params, stream);
    }
  }
}

}  // namespace warproll
