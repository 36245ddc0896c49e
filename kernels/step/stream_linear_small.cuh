// stream_linear in small CTAs: the kernel and its launch. Grid: one CTA a row tile of 2048 columns, a
// cluster of two a tile of 4096; block 256 threads. A CTA produces the 16 outputs of every token of its
// tile, or, of two, the sums of its half of the columns.
// All that a CTA reads of W, 64 KB at most, is asked for as soon as it starts, and three fit an SM: one
// of them beside the previous kernel's last CTA there, where a CTA of stream_linear.cuh wants the SM for
// itself. So there are no rings and no roles: each warp has a chain of the columns, the first one
// finishes. Order of sums, and bits: stream_linear.h.
// Internal to kernels/step/stream_linear*.cu.
#pragma once

#include <type_traits>

#include "kernels/cuda/launch.cuh"
#include "kernels/step/stream_linear.h"
#include "kernels/step/stream_linear_finish.cuh"
#include "kernels/step/stream_linear_multiply.cuh"
#include "kernels/step/stream_linear_norm.cuh"

namespace warproll::stream_linear_detail {

// kHalfSteps: blocks of each half of the columns that a warp has. kNorm, kBf16: as in Shape.
template <TileFormat kFormat_, bool kBf16_, int kHalfSteps_, bool kNorm_>
struct SmallShape {
  static constexpr TileFormat kFormat = kFormat_;
  static constexpr bool kBf16 = kBf16_, kNorm = kNorm_;
  static constexpr int kHalfSteps = kHalfSteps_;
  static constexpr int kCtasOfSm = 3;
  static constexpr int kWarps = kChains, kThreads = kWarps * 32;
  static constexpr int kTokens = kNorm ? kMaxNormTokens : kMaxSmallTokens;
  static constexpr int kAllSteps = 8;                        // of a warp
  static constexpr int kSplit = 2 * kHalfSteps / kAllSteps;  // 2: each half has a CTA of its own
  static constexpr int kHalves = 2 / kSplit;                 // of a CTA, and of each of its warps
  static constexpr int kBlockBytes = tile_block_bytes(kFormat);
  // W comes in so many parts, each with a barrier.
  static constexpr int kParts = 4, kSteps = kAllSteps / kParts;
  static constexpr int kPartBytes = kSteps * kChains * kBlockBytes;
  // What Activations and Columns ask for.
  static constexpr int kHalfWarps = 1, kHalvesOfWarp = kHalves, kTilesOfWarp = 1;
  static_assert((kSplit == 1 || kSplit == 2) && kHalves * kHalfSteps == kAllSteps);
  static_assert(!kNorm || (kSplit == 1 && !kBf16 && kThreads == step::NormThread::kThreads));
};

template <class S>
struct SmallShared {
  alignas(128) std::byte blocks[S::kParts * S::kPartBytes];
  alignas(16) uint16_t row_scales[kTileRows];  // BF16
  alignas(16) float sums[S::kHalves * kChains][S::kTokens][kTileFloats];
  float4 received[S::kSplit == 1 ? 1 : 32];  // of the first CTA: the second one's sums, by lane
  uint64_t full[S::kParts], arrived;
  std::conditional_t<S::kNorm, NormRows, char> norm;

  static constexpr int kSmBytes = 228 * 1024, kReservedBytes = 1024;
};
static_assert(sizeof(uint16_t) * kTileRows == kRowScaleBytes);

template <class S>
class SmallCta {
 public:
  __device__ __forceinline__ SmallCta(const Params& p, SmallShared<S>& shared)
      : p_(p), shared_(shared) {}

  __device__ __forceinline__ void run() {
    if (warp_ == S::kWarps - 1) init_barriers();
    __syncthreads();
    if constexpr (S::kSplit > 1) ptx::cluster_arrive();  // barriers stand
    if (warp_ == S::kWarps - 1) load();
    if constexpr (S::kSplit > 1) ptx::cluster_wait();
    const uint4* x = p_.x;
    int row_granules = p_.weight.cols / 8;
    if constexpr (S::kNorm) {
      const NormProlog<1> norm(p_);
      ptx::wait_for_previous_kernel();
      norm.run(shared_.norm);
      x = shared_.norm.rows[0];
      row_granules = NormRows::kRowGranules;
    } else {
      ptx::wait_for_previous_kernel();
    }
    float scale = 1.0f;  // of x; read now, not when the sums are there
    if (!S::kBf16 && !S::kNorm && warp_ == 0 && token_ < p_.num_tokens) scale = p_.x_scales[token_];
    x_.read(p_, x, row_granules, 0, first_half<S>(), warp_);
    multiply();
    __syncthreads();
    if (warp_ == 0 && token_ < p_.num_tokens) finish(scale);
  }

 private:
  __device__ __forceinline__ uint32_t full(int part) const {
    return ptx::shared_address(shared_.full + part);
  }
  __device__ __forceinline__ uint32_t arrived() const {
    return ptx::shared_address(&shared_.arrived);
  }

  // A warp.
  __device__ __forceinline__ void init_barriers() const {
    if (lane_ < S::kParts) ptx::mbarrier_init(full(lane_), 1);
    if (S::kSplit > 1 && lane_ == S::kParts) ptx::mbarrier_init(arrived(), 1);
    ptx::fence_mbarrier_init();
    if (S::kSplit > 1 && lane_ == S::kParts && rank_ == 0)
      ptx::mbarrier_arrive_expect(arrived(), static_cast<uint32_t>(p_.num_tokens) * kTileRows * 4);
  }

  // The same warp, a lane a part. Then the next kernel may start.
  __device__ __forceinline__ void load() const {
    if (lane_ < S::kParts) {
      const uint64_t policy = ptx::evict_first_policy();
      const int tile = worker<S>();
      const bool scales = lane_ == S::kParts - 1;
      const std::byte* from = p_.weight.data +
                              tile * static_cast<int64_t>(p_.weight.record_bytes()) +
                              (rank_ * S::kParts + lane_) * S::kPartBytes;
      ptx::mbarrier_arrive_expect(full(lane_), S::kPartBytes + (scales ? kRowScaleBytes : 0));
      ptx::bulk_load(ptx::shared_address(shared_.blocks + lane_ * S::kPartBytes), from,
                     S::kPartBytes, full(lane_), policy);
      if (scales) {
        ptx::bulk_load(ptx::shared_address(shared_.row_scales),
                       p_.weight.row_scales() + static_cast<int64_t>(tile) * kRowScaleBytes,
                       kRowScaleBytes, full(lane_), policy);
      }
    }
    __syncwarp();
    ptx::allow_next_kernel();
  }

  // This warp's chain of each half.
  __device__ __forceinline__ void multiply() {
    float sums[S::kHalves][4] = {};
#pragma unroll
    for (int i = 0; i < S::kAllSteps; ++i) {
      if (i % S::kSteps == 0) ptx::mbarrier_wait(full(i / S::kSteps), 0);
      const Block<S::kFormat> w(shared_.blocks + (i * kChains + warp_) * S::kBlockBytes);
      w.multiply(x_.at(i / S::kHalfSteps, i % S::kHalfSteps, 0, 0), sums[i / S::kHalfSteps]);
    }
    const int token = lane_ % 4 * 2;
    if (token >= S::kTokens) return;
#pragma unroll
    for (int h = 0; h < S::kHalves; ++h) {
      float* to = &shared_.sums[h * kChains + warp_][token][lane_ / 4];
      to[0] = sums[h][0] * x_.scale(h, 0, 0);
      to[kTileFloats] = sums[h][1] * x_.scale(h, 0, 1);
      to[8] = sums[h][2] * x_.scale(h, 0, 0);
      to[kTileFloats + 8] = sums[h][3] * x_.scale(h, 0, 1);
    }
  }

  // The chains of a quarter in order, quarters in pairs, halves; a lane has four rows of one token.
  __device__ __forceinline__ void finish(float scale) const {
    float4 halves[S::kHalves];
#pragma unroll
    for (int h = 0; h < S::kHalves; ++h) {
      float4 quarters[2];
#pragma unroll
      for (int c = 0; c < kChains; ++c) {
        const float4 v =
            *reinterpret_cast<const float4*>(&shared_.sums[h * kChains + c][token_][lane_ % 4 * 4]);
        quarters[c / kQuarter] = c % kQuarter == 0 ? v : add(quarters[c / kQuarter], v);
      }
      halves[h] = add(quarters[0], quarters[1]);
    }
    float4 sum = halves[0];
    if constexpr (S::kSplit == 1) {
      sum = add(sum, halves[1]);
    } else {
      float4* received = shared_.received + lane_;
      if (rank_ == 1) {  // the first CTA is there until it has them
        ptx::store_to_cluster(ptx::address_in_cluster(ptx::shared_address(received), 0), sum,
                              ptx::address_in_cluster(arrived(), 0));
        return;
      }
      ptx::mbarrier_wait(arrived(), 0);
      sum = add(sum, *received);
    }
    if constexpr (S::kNorm) scale = shared_.norm.scales[token_];
    const uint2 scales = reinterpret_cast<const uint2*>(shared_.row_scales)[lane_ % 4];
    store_rows(p_, worker<S>(), token_, sum, scales, scale);
  }

  const Params& p_;
  SmallShared<S>& shared_;
  const int lane_ = static_cast<int>(threadIdx.x) % 32;
  const int warp_ = static_cast<int>(threadIdx.x) / 32;
  const int rank_ = S::kSplit == 1 ? 0 : static_cast<int>(ptx::cluster_rank());
  // That this lane of the first warp finishes: so that eight lanes read all banks.
  const int token_ = lane_ / 8 + lane_ / 4 % 2 * 4;
  Activations<S> x_;
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kCtasOfSm)
    stream_linear_small_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) std::byte memory[];
  SmallCta<S>(p, *reinterpret_cast<SmallShared<S>*>(memory)).run();
}

template <class S>
void launch_small(const StreamLinearParams& p, cudaStream_t stream) {
  using Shared = SmallShared<S>;
  static_assert(S::kCtasOfSm * (sizeof(Shared) + Shared::kReservedBytes) <= Shared::kSmBytes);
  const Params params = {.weight = p.weight,
                         .x = reinterpret_cast<const uint4*>(S::kBf16 ? p.x_bf16 : p.x.values),
                         .x_scales = p.x.scales,
                         .y = reinterpret_cast<__nv_bfloat16*>(p.y),
                         .y_f32 = p.y_f32,
                         .num_tokens = p.num_tokens,
                         .num_groups = 1,
                         .num_stages = 0,
                         .resident = true,
                         .norm = p.norm};
  LaunchConfig config(dim3(static_cast<unsigned>(p.weight.num_tiles * S::kSplit)), S::kThreads,
                      sizeof(Shared), stream);
  config.programmatic();
  config.all_shared();
  if (S::kSplit > 1) config.cluster(S::kSplit);
  config.run(stream_linear_small_kernel<S>, params);
}

// As stream_linear_can_be_small says.
template <TileFormat kFormat>
void launch_small_format(const StreamLinearParams& p, cudaStream_t stream) {
  if (p.x_bf16 != nullptr) return launch_small<SmallShape<kFormat, true, 8, false>>(p, stream);
  if (p.norm.hidden != nullptr) return launch_small<SmallShape<kFormat, false, 4, true>>(p, stream);
  launch_small<SmallShape<kFormat, false, 4, false>>(p, stream);
}

}  // namespace warproll::stream_linear_detail
