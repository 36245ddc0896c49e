// cluster_linear: shapes, parameters, shared memory and the loading warp.
// Internal to kernels/step/cluster_linear*.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/moe/tiles.h"

namespace warproll::cluster_linear_detail {

inline constexpr int kPanelCols = 64;  // a token's in shared memory: 128 bytes
inline constexpr int kGranules = kPanelCols / 8;
inline constexpr int kBlockBytes = tile_block_bytes(TileFormat::kF16);
inline constexpr int kTileBytes = kPanelCols / kTileBlock * kBlockBytes;  // a tile's of a panel
inline constexpr int kGroupWarps = 4;                                     // of a warpgroup
// All of an SM's: what fits is on its way while earlier kernels still run.
inline constexpr int kSharedBytes = 227 * 1024;

// kBf16: x is BF16 rows, else tiles. kTokens: at most, of a launch. kSplit: CTAs of a cluster; each has
// kPanels panels of the columns. kGroups: warpgroups that multiply, kGroupTiles of W at a time each: a
// warp a tile, some none.
template <bool kBf16_, int kTokens_, int kSplit_, int kPanels_, int kGroups_, int kGroupTiles_>
struct Shape {
  static constexpr bool kBf16 = kBf16_;
  static constexpr int kTokens = kTokens_;
  static constexpr int kSplit = kSplit_;
  static constexpr int kPanels = kPanels_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kGroupTiles = kGroupTiles_;
  static constexpr int kCols = kSplit * kPanels * kPanelCols;
  static constexpr int kTiles = kGroups * kGroupTiles;  // of a cluster at a time
  static constexpr int kWarps = kGroups * kGroupWarps;  // that multiply
  static constexpr int kThreads = (kWarps + 1) * 32;
  static constexpr int kPanelBytes = kTokens * kPanelCols * 2;
  static constexpr int kSums = kTokens / 2;  // of a lane: of two rows, two of every eight tokens
  static constexpr int kOwn = kSums / kSplit;
  // What moves to another CTA at once: four sums, or two.
  using Vector = std::conditional_t<kOwn % 4 == 0, float4, float2>;
  static constexpr int kVectors = kOwn * 4 / static_cast<int>(sizeof(Vector));
  static constexpr int kReceived = kTiles * (kSplit - 1) * kVectors * 32;
  static constexpr int kStageBytes = kGroupTiles * kTileBytes;
  static constexpr int kMaxStages = kGroups * kPanels;
  static constexpr int kBarriers = 2 * kMaxStages + 2 * kTiles;
  static constexpr int kFixedBytes = kPanels * kPanelBytes +
                                     kReceived * static_cast<int>(sizeof(Vector)) + kTokens * 4 +
                                     kBarriers * 8;
  static constexpr int kStages = std::min((kSharedBytes - kFixedBytes) / kStageBytes, kMaxStages);
  static constexpr int kBytes = kFixedBytes + kStages * kStageBytes;
  static_assert(kStages >= 2 && kOwn % 2 == 0 && kGroupTiles <= kGroupWarps);
};

struct Params {
  TileMatrix weight;
  const uint4* x;         // [T, cols / 8]
  const float* x_scales;  // [T], not for BF16
  __nv_bfloat16* y;
  float* y_f32;  // instead of y, or null
  int num_tokens;
};

// CTA r of a cluster finishes S::kOwn of a lane's sums from r * S::kOwn on. sums[4i + 2h + j] is of row
// g + 8h, token 8i + 2t + j.
template <class S>
__device__ __forceinline__ bool finishes(int rank, int num_tokens) {
  return rank * S::kOwn / 4 * 8 < num_tokens;
}
template <class S>
__device__ __forceinline__ int other_finishers(int num_tokens) {
  int count = 0;
  for (int r = 0; r < S::kSplit; ++r) count += finishes<S>(r, num_tokens) ? 1 : 0;
  return count - (finishes<S>(static_cast<int>(ptx::cluster_rank()), num_tokens) ? 1 : 0);
}

template <class S>
struct Shared {
  using Vector = typename S::Vector;
  std::byte* x;      // [kPanels]: token n's 128 bytes at n * 128, their granule c at c ^ (n % 8)
  std::byte* ring;   // [kStages][kGroupTiles][kTileBytes]
  Vector* received;  // [kTiles][kSplit - 1][kVectors][32]
  float* scales;     // [kTokens]
  uint64_t* barriers;

  __device__ explicit Shared(std::byte* base)
      : x(base),
        ring(base + S::kPanels * S::kPanelBytes),
        received(reinterpret_cast<Vector*>(ring + S::kStages * S::kStageBytes)),
        scales(reinterpret_cast<float*>(received + S::kReceived)),
        barriers(reinterpret_cast<uint64_t*>(scales + S::kTokens)) {}

  // Each warpgroup has barriers of its own for its panels, though not stages: it might wait for one that
  // is two phases away.
  __device__ uint32_t full(int group, int panel) const {
    return ptx::shared_address(barriers + group * S::kPanels + panel);
  }
  __device__ uint32_t empty(int stage) const {
    return ptx::shared_address(barriers + S::kMaxStages + stage);
  }
  // The other CTAs' sums of a tile have arrived; those that finish tokens have read ours.
  __device__ uint32_t arrived(int tile) const {
    return ptx::shared_address(barriers + 2 * S::kMaxStages + tile);
  }
  __device__ uint32_t may_send(int tile) const { return arrived(S::kTiles + tile); }

  // One thread.
  __device__ void init_barriers(int num_tokens) const {
    for (int i = 0; i < S::kMaxStages; ++i) {
      ptx::mbarrier_init(full(0, i), 1);
      ptx::mbarrier_init(empty(i), kGroupWarps * kWarpArrivals);
    }
    for (int i = 0; i < S::kTiles; ++i) {
      ptx::mbarrier_init(arrived(i), 1);
      ptx::mbarrier_init(may_send(i), max(other_finishers<S>(num_tokens), 1));
    }
    ptx::fence_mbarrier_init();
  }
};

// Tiles go to clusters kTiles at a time.
template <class S>
__device__ __forceinline__ int first_tile() {
  return static_cast<int>(blockIdx.x) / S::kSplit * S::kTiles;
}
template <class S>
__device__ __forceinline__ int tile_step() {
  return static_cast<int>(gridDim.x) / S::kSplit * S::kTiles;
}

// A warp: this CTA's columns of the cluster's tiles, one warpgroup's after the other's, so that they do not
// all come to exchange their sums at once. A lane a tile: one lane does not ask fast enough.
template <class S>
__device__ __forceinline__ void load_weights(const Params& p, const Shared<S>& shared) {
  const uint64_t policy = ptx::evict_first_policy();
  const int record_bytes = p.weight.record_bytes();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::byte* columns =
      p.weight.data + static_cast<int>(ptx::cluster_rank()) * S::kPanels * kTileBytes;
  RingPlace stage{.size = S::kStages};
  for (int first = first_tile<S>(); first < p.weight.num_tiles; first += tile_step<S>()) {
    for (int group = 0; group < S::kGroups; ++group) {
      const int tile = first + group * S::kGroupTiles;
      const int count = min(S::kGroupTiles, p.weight.num_tiles - tile);
      if (count <= 0) break;
#pragma unroll 1
      for (int panel = 0; panel < S::kPanels; ++panel) {
        const uint32_t barrier = shared.full(group, panel);
        ptx::mbarrier_wait(shared.empty(stage.index), stage.parity ^ 1);
        if (lane == 0)
          ptx::mbarrier_arrive_expect(barrier, static_cast<uint32_t>(count * kTileBytes));
        __syncwarp();
        if (lane < count) {
          ptx::bulk_load(
              ptx::shared_address(shared.ring + stage.index * S::kStageBytes + lane * kTileBytes),
              columns + int64_t{tile + lane} * record_bytes + panel * kTileBytes, kTileBytes,
              barrier, policy);
        }
        stage.advance();
      }
    }
  }
  ptx::allow_next_kernel();
}

}  // namespace warproll::cluster_linear_detail
