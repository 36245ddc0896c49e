// stream_linear: its shapes, shared memory and loading warp. Internal to kernels/step/*.cu.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/moe/tiles.h"
#include "kernels/step/residual_norm.cuh"

namespace warproll::stream_linear_detail {

inline constexpr int kChains = 8;  // of a half of the columns; a warp each
inline constexpr int kQuarter = kChains / 2;
inline constexpr int kMaxStages = 12;
inline constexpr int kTileFloats = 20;  // of a token in a slot: sixteen rows, padded for the banks
inline constexpr int kSlots = 2;        // tiles between the multiplying and the finishing warps
inline constexpr int kMaxNormTokens = 2;

// The norms that are x, as F16 in tile order with a scale a token.
struct alignas(16) NormRows {
  static constexpr int kRowGranules = kResidualNormHidden / 8 + 4;  // rows in different banks
  uint4 rows[kMaxNormTokens][kRowGranules];
  float sums[kMaxNormTokens][step::NormThread::kWarps],
      largest[kMaxNormTokens][step::NormThread::kWarps];
  float scales[kMaxNormTokens];
};

// kHalfSteps: how many blocks of each half a warp has, when that is the same for all and their
// activations fit into registers; 0: any number, activations are read again for every tile.
// kSplit: 2: each half of the columns has a CTA of its own, two make a cluster; 4: so has each half of
// a half's chains; 1: no clusters. kNorm: x is the norm of a residual stream (stream_linear_norm.cuh). More CTAs on a tile read less of x each, but have more to exchange.
// kTokenTiles: of eight tokens, of a group; kTokenWarps share them. kHalfWarps: 2: each half of the
// columns has warps of its own; 1: a warp goes through all halves that the CTA has.
template <TileFormat kFormat_, bool kBf16_, int kHalfSteps_, int kSplit_, int kTokenTiles_,
          int kTokenWarps_, int kHalfWarps_, bool kNorm_ = false>
struct Shape {
  static constexpr TileFormat kFormat = kFormat_;
  static constexpr bool kBf16 = kBf16_;
  static constexpr int kHalfSteps = kHalfSteps_;
  static constexpr int kSplit = kSplit_;
  static constexpr int kTokenTiles = kTokenTiles_;
  static constexpr int kTokenWarps = kTokenWarps_;
  static constexpr int kHalfWarps = kHalfWarps_;
  static constexpr bool kNorm = kNorm_;
  static constexpr int kTilesOfWarp = kTokenTiles / kTokenWarps;
  static constexpr int kHalves = kSplit == 1 ? 2 : 1;                    // of a CTA
  static constexpr int kChainsOfCta = kSplit == 4 ? kQuarter : kChains;  // in each
  static constexpr int kHalvesOfWarp = kHalves / kHalfWarps;
  static constexpr int kWarps = kChainsOfCta * kTokenWarps * kHalfWarps;  // that multiply
  static constexpr int kLoadWarp = kWarps;
  static constexpr int kFinishers = std::min(kTokenWarps, kTokenTiles / kSplit);
  static constexpr int kThreads = (kWarps + 1 + kFinishers) * 32;
  static constexpr int kBlockBytes = tile_block_bytes(kFormat);
  // Blocks of a warp in a stage.
  static constexpr int kFullSteps = (kFormat == TileFormat::kF16 ? 2 : 4) * kChains / kChainsOfCta;
  static constexpr int kSteps = kHalfSteps == 0 ? kFullSteps : std::min(kFullSteps, kHalfSteps);
  static constexpr int kStageBlocks = kSteps * kChainsOfCta;
  // Behind the blocks of one of a tile's stages its row scales.
  static constexpr int kStageBytes =
      (kStageBlocks * kBlockBytes + kRowScaleBytes + 127) / 128 * 128;
  static constexpr int kScalesAt = kStageBlocks * kBlockBytes;
  // A slot: the sums of a tile, then its row scales.
  static constexpr int kSumFloats = kHalves * kChainsOfCta * kTokenTiles * 8 * kTileFloats;
  static constexpr int kSlotFloats = kSumFloats + kRowScaleBytes / 4;
  static constexpr int kOwn = kTokenTiles / kSplit / kFinishers;  // token tiles of a finishing warp
  static constexpr int kReceived = kSplit == 1 ? 0 : kSlots * kTokenTiles * 32;  // float4
  static constexpr int kBarriers = 2 * kMaxStages + 4 * kSlots;
  static constexpr int kFixedBytes = kSlots * kSlotFloats * 4 + kReceived * 16 + kBarriers * 8 +
                                     (kNorm ? static_cast<int>(sizeof(NormRows)) : 0);
  static_assert(kHalfSteps % kSteps == 0 && kTokenTiles % kTokenWarps == 0);
  static_assert(kHalfWarps == 1 || (kSplit == 1 && kTokenWarps == 1));
  static_assert(!kNorm || (kSplit == 1 && !kBf16 && kTokenTiles == 1 && kBarriers % 2 == 0 &&
                           2 * kHalfSteps * kChains * kTileBlock == kResidualNormHidden &&
                           kWarps == kMaxNormTokens * step::NormThread::kWarps));
  static_assert(kSplit == 1 || (kTokenTiles % kSplit == 0 && kHalfSteps > 0));
};

struct Params {
  TileMatrix weight;
  const uint4* x;         // [T, cols / 8]
  const float* x_scales;  // [T], not for BF16
  __nv_bfloat16* y;
  float* y_f32;  // instead of y, or null
  int num_tokens, num_groups;
  int num_stages;
  bool resident;  // a CTA's share of W fits its stages: it is loaded once
  ResidualNorm norm;
};

template <class S>
struct Shared {
  std::byte* stages;  // [num_stages][kStageBytes]
  float* slots;       // [kSlots]: [kHalves][kChains][tokens of a group][kTileFloats], row scales
  float4* received;   // [kSlots][kSplit sources][kTokenTiles / kSplit][32]
  uint64_t* barriers;
  NormRows* norm;  // kNorm

  static int bytes(int num_stages) { return num_stages * S::kStageBytes + S::kFixedBytes; }
  __device__ Shared(std::byte* base, int num_stages)
      : stages(base),
        slots(reinterpret_cast<float*>(base + num_stages * S::kStageBytes)),
        received(reinterpret_cast<float4*>(slots + kSlots * S::kSlotFloats)),
        barriers(reinterpret_cast<uint64_t*>(received + S::kReceived)),
        norm(reinterpret_cast<NormRows*>(barriers + S::kBarriers)) {}

  __device__ uint32_t full(int stage) const { return ptx::shared_address(barriers + stage); }
  __device__ uint32_t empty(int stage) const { return full(kMaxStages + stage); }
  __device__ uint32_t slot_full(int i) const { return full(2 * kMaxStages + i); }
  __device__ uint32_t slot_empty(int i) const { return full(2 * kMaxStages + kSlots + i); }
  // The other CTAs' sums have arrived; they have read ours.
  __device__ uint32_t arrived(int i) const { return full(2 * kMaxStages + 2 * kSlots + i); }
  __device__ uint32_t may_send(int i) const { return full(2 * kMaxStages + 3 * kSlots + i); }

  // One thread.
  __device__ void init_barriers(int num_stages) const {
    for (int i = 0; i < num_stages; ++i) {
      ptx::mbarrier_init(full(i), 1);
      ptx::mbarrier_init(empty(i), S::kWarps / S::kHalfWarps * kWarpArrivals);
    }
    for (int i = 0; i < kSlots; ++i) {
      ptx::mbarrier_init(slot_full(i), S::kWarps * kWarpArrivals);
      ptx::mbarrier_init(slot_empty(i), S::kFinishers * kWarpArrivals);
      ptx::mbarrier_init(arrived(i), S::kFinishers);
      ptx::mbarrier_init(may_send(i), std::max(S::kSplit - 1, 1) * S::kFinishers);
    }
    ptx::fence_mbarrier_init();
  }
};

// Which CTA this is of those that share out the tiles, and how many they are.
template <class S>
__device__ __forceinline__ int worker() {
  return static_cast<int>(blockIdx.x) / S::kSplit;
}
template <class S>
__device__ __forceinline__ int workers() {
  return static_cast<int>(gridDim.x) / S::kSplit;
}
template <class S>
__device__ __forceinline__ int first_half() {
  return S::kSplit == 1 ? 0 : static_cast<int>(ptx::cluster_rank()) / (S::kSplit / 2);
}
template <class S>
__device__ __forceinline__ int first_chain() {
  return S::kSplit == 4 ? static_cast<int>(ptx::cluster_rank()) % 2 * kQuarter : 0;
}

// The columns as halves, the halves as stages: the last ones may be short, or empty. The stages of a
// tile come in the order of the halves, or of kHalfWarps by turns.
template <class S>
struct Columns {
  int blocks, blocks_of_half, stages_of_half;

  __device__ explicit Columns(const TileMatrix& w) {
    if constexpr (S::kHalfSteps > 0) {
      blocks_of_half = S::kHalfSteps * kChains;
      blocks = 2 * blocks_of_half;
      stages_of_half = S::kHalfSteps / S::kSteps;
    } else {
      blocks = w.num_blocks();
      blocks_of_half = (blocks + 1) / 2;
      stages_of_half = (blocks_of_half + S::kStageBlocks - 1) / S::kStageBlocks;
    }
  }
  __device__ int first(int half) const { return half * blocks_of_half; }
  __device__ int end(int half) const { return min((half + 1) * blocks_of_half, blocks); }
  __device__ int stages_of_tile() const { return S::kHalves * stages_of_half; }
  // Of stage i of a tile: its half, counted in the CTA, and its place in it.
  __device__ int half_of(int i) const {
    return S::kHalfWarps == 2 ? i % 2 : i >= stages_of_half ? 1 : 0;
  }
  __device__ int part_of(int i) const {
    return S::kHalfWarps == 2 ? i / 2 : i >= stages_of_half ? i - stages_of_half : i;
  }
  // The stage that brings the row scales: the last one that the first warp reads.
  __device__ int scales_stage() const { return stages_of_tile() - S::kHalfWarps; }
};

// One lane: this CTA's share of W into the ring, again for every group unless it stays. At the end the
// next kernel may start: its loads are to follow ours, not to share the memory with them.
template <class S>
__device__ __forceinline__ void load_weights(const Params& p, const Shared<S>& shared) {
  const uint64_t policy = ptx::evict_first_policy();
  const Columns<S> columns(p.weight);
  const int64_t record_bytes = p.weight.record_bytes();
  RingPlace ring{.size = p.num_stages};
  for (int group = 0; group < (p.resident ? 1 : p.num_groups); ++group) {
    for (int tile = worker<S>(); tile < p.weight.num_tiles; tile += workers<S>()) {
      const std::byte* record = p.weight.data + tile * record_bytes;
#pragma unroll 1
      for (int i = 0; i < columns.stages_of_tile(); ++i) {
        const int half = first_half<S>() + columns.half_of(i);
        const int first = columns.first(half) + columns.part_of(i) * S::kSteps * kChains;
        const int blocks =
            S::kSplit == 4 ? S::kStageBlocks : min(S::kStageBlocks, columns.end(half) - first);
        const uint32_t bytes = max(blocks, 0) * S::kBlockBytes;
        const bool scales = i == columns.scales_stage();
        const uint32_t barrier = shared.full(ring.index);
        const uint32_t to = ptx::shared_address(shared.stages + ring.index * S::kStageBytes);
        ptx::mbarrier_wait(shared.empty(ring.index), ring.parity ^ 1);
        ptx::mbarrier_arrive_expect(barrier, bytes + (scales ? kRowScaleBytes : 0));
        if constexpr (S::kSplit == 4) {  // every second four blocks
          constexpr int kBytes = kQuarter * S::kBlockBytes;
          const std::byte* from = record + (first + first_chain<S>()) * S::kBlockBytes;
#pragma unroll 1
          for (int step = 0; step < S::kSteps; ++step, from += 2 * kBytes)
            ptx::bulk_load(to + step * kBytes, from, kBytes, barrier, policy);
        } else if (bytes > 0) {
          ptx::bulk_load(to, record + first * S::kBlockBytes, bytes, barrier, policy);
        }
        if (scales) {
          ptx::bulk_load(to + S::kScalesAt, p.weight.row_scales() + tile * kRowScaleBytes,
                         kRowScaleBytes, barrier, policy);
        }
        ring.advance();
      }
    }
  }
  ptx::allow_next_kernel();
}

}  // namespace warproll::stream_linear_detail
