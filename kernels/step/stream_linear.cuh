// stream_linear: the kernel and its launch for one tile format. Grid: one CTA an SM at most, or as
// many in clusters of two or four; block: sixteen warps that multiply, one that loads, one or two that finish. A
// CTA, or cluster, produces 16 outputs of every token with each tile it streams.
// Internal to kernels/step/stream_linear*.cu.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/step/stream_linear.h"
#include "kernels/step/stream_linear_finish.cuh"
#include "kernels/step/stream_linear_multiply.cuh"
#include "kernels/step/stream_linear_norm.cuh"

namespace warproll::stream_linear_detail {

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    stream_linear_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) std::byte memory[];
  const Shared<S> shared(memory, p.num_stages);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp == S::kLoadWarp && threadIdx.x % 32 == 0) shared.init_barriers(p.num_stages);
  __syncthreads();
  if constexpr (S::kSplit > 1) ptx::cluster_arrive();  // our barriers stand
  if (warp == S::kLoadWarp) {
    if (threadIdx.x % 32 == 0) load_weights(p, shared);
    __syncwarp();
    if constexpr (S::kSplit > 1) ptx::cluster_wait();
  } else {
    if constexpr (S::kNorm) {
      if (warp < S::kWarps) {
        const NormProlog norm(p);
        ptx::wait_for_previous_kernel();
        norm.run(*shared.norm);
      }
    } else {
      ptx::wait_for_previous_kernel();
    }
    if constexpr (S::kSplit > 1) ptx::cluster_wait();
    if (warp < S::kWarps) {
      Multiplier<S>(p, shared).run();
    } else {
      Finisher<S>(p, shared, warp - S::kLoadWarp - 1).run();
    }
  }
}

inline constexpr int kManyTiles = 1024;
// All of an SM's: what fits is on its way while earlier kernels still run.
inline constexpr int kSharedBytes = 227 * 1024;

// CTAs, or clusters, that run side by side. A second wave of them would double the time.
template <class S>
int max_workers() {
  const int sms = num_multiprocessors();
  if (S::kSplit == 1) return sms;
  LaunchConfig config(dim3(static_cast<unsigned>(sms / S::kSplit * S::kSplit)), S::kThreads,
                      kSharedBytes, nullptr);
  config.cluster(S::kSplit);
  return config.max_active_clusters(stream_linear_kernel<S>);
}

template <class S>
void launch(const StreamLinearParams& p, cudaStream_t stream) {
  static const int workers_at_once = max_workers<S>();
  const TileMatrix& w = p.weight;
  const int most = std::min(w.num_tiles, workers_at_once);
  const int tiles = (w.num_tiles + most - 1) / most;  // of the busiest
  const int workers = (w.num_tiles + tiles - 1) / tiles;
  const int half = (w.num_blocks() + 1) / 2;
  const int stages =
      tiles * S::kHalves * ((half + S::kSteps * kChains - 1) / (S::kSteps * kChains));
  // With warps of each half a stage belongs to one of them for good: their phases are ambiguous else.
  constexpr int kFit = std::min((kSharedBytes - S::kFixedBytes) / S::kStageBytes, kMaxStages) /
                       S::kHalfWarps * S::kHalfWarps;
  static_assert(kFit >= 2);
  const Params params = {
      .weight = w,
      .x = reinterpret_cast<const uint4*>(S::kBf16 ? p.x_bf16 : p.x.values),
      .x_scales = p.x.scales,
      .y = reinterpret_cast<__nv_bfloat16*>(p.y),
      .y_f32 = p.y_f32,
      .num_tokens = p.num_tokens,
      .num_groups = (p.num_tokens + S::kTokenTiles * 8 - 1) / (S::kTokenTiles * 8),
      .num_stages = std::min(stages, kFit),
      .resident = stages <= kFit,
      .norm = p.norm};
  LaunchConfig config(dim3(static_cast<unsigned>(workers * S::kSplit)), S::kThreads,
                      Shared<S>::bytes(params.num_stages), stream);
  config.programmatic();
  config.all_shared();
  if (S::kSplit > 1) config.cluster(S::kSplit);
  config.run(stream_linear_kernel<S>, params);
}

// By the columns, then by the tokens, as measured (docs/benchmarks/step.md). Few have a CTA of their own
// for a tile, which saves a hop; with many, reading x is what takes time, unless there are many tiles.
template <TileFormat kFormat, bool kBf16>
void launch_shape(const StreamLinearParams& p, cudaStream_t stream) {
  const int blocks = p.weight.num_blocks(), tokens = p.num_tokens;
  if (blocks == 2 * 8 * kChains) {
    constexpr bool kWide = kFormat == TileFormat::kF16;
    if (tokens <= 8) return launch<Shape<kFormat, kBf16, 8, 1, 1, 1, 2>>(p, stream);
    if (tokens <= 16 && !kWide) return launch<Shape<kFormat, kBf16, 8, 2, 2, 2, 1>>(p, stream);
    if (tokens <= 32) return launch<Shape<kFormat, kBf16, 8, 4, 4, 4, 1>>(p, stream);
    return launch<Shape<kFormat, kBf16, 8, 4, 8, 4, 1>>(p, stream);
  }
  if constexpr (!kBf16) {
    if (p.norm.hidden != nullptr)
      return launch<Shape<kFormat, false, 4, 1, 1, 1, 2, true>>(p, stream);
    if (blocks == 2 * 4 * kChains) {
      const bool many_tiles = p.weight.num_tiles > kManyTiles;
      if (tokens <= 8) return launch<Shape<kFormat, false, 4, 1, 1, 1, 2>>(p, stream);
      if (tokens <= 16) return launch<Shape<kFormat, false, 4, 2, 2, 2, 1>>(p, stream);
      if (many_tiles && tokens <= 32)
        return launch<Shape<kFormat, false, 4, 2, 4, 2, 1>>(p, stream);
      if (many_tiles) return launch<Shape<kFormat, false, 4, 2, 8, 2, 1>>(p, stream);
      if (tokens <= 32) return launch<Shape<kFormat, false, 4, 4, 4, 4, 1>>(p, stream);
      return launch<Shape<kFormat, false, 4, 4, 8, 4, 1>>(p, stream);
    }
  }
  if (tokens <= 8) return launch<Shape<kFormat, kBf16, 0, 1, 1, 1, 2>>(p, stream);
  launch<Shape<kFormat, kBf16, 0, 1, 4, 2, 1>>(p, stream);
}

template <TileFormat kFormat>
void launch_format(const StreamLinearParams& p, cudaStream_t stream) {
  if (p.x_bf16 == nullptr) return launch_shape<kFormat, false>(p, stream);
  launch_shape<kFormat, true>(p, stream);
}

// One file each.
void launch_f16(const StreamLinearParams& p, cudaStream_t stream);
void launch_mxfp8(const StreamLinearParams& p, cudaStream_t stream);
void launch_fp8_block(const StreamLinearParams& p, cudaStream_t stream);

}  // namespace warproll::stream_linear_detail
