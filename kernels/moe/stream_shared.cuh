// What the roles of expert_stream.cuh share: shapes, shared memory, rings, barriers.
// Internal to kernels/moe/*.cu.
#pragma once

#include <algorithm>

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/moe/expert_lists.h"
#include "kernels/moe/tiles.h"

namespace warproll::moe {

inline constexpr int kMultiplyWarps = 8;
inline constexpr int kLoadWarp = 8;
inline constexpr int kFinishWarp = 9;
inline constexpr int kStreamThreads = 10 * 32;
inline constexpr int kSlots = 2;  // records between the multiplying and the finishing warps
inline constexpr int kMaxStages = 12;

// kSlice: how many blocks of a record every warp takes, when it is the same for all and their
// activations fit into registers; 0: any number, activations are read again for every record.
// kTiles: neighbouring records of an expert that are loaded and multiplied at once: more than one
// where a single record is too little work between two waits.
// kTokenTiles: of eight columns; what the largest expert block needs. F16 weights are multiplied with
// large blocks; FP8, which arrive in half the time, were measured slower that way.
template <TileFormat kFormat_, int kSlice_, int kTiles_,
          int kTokenTiles_ = (kFormat_ == TileFormat::kF16 ? kLargeBlockPairs : kMaxBlockPairs) / 8>
struct StreamShape {
  static constexpr TileFormat kFormat = kFormat_;
  static constexpr int kSlice = kSlice_;
  static constexpr int kTiles = kTiles_;
  static constexpr int kTokenTiles = kTokenTiles_;
  static constexpr int kBlockBytes = tile_block_bytes(kFormat);
  static constexpr bool kLarge = kTokenTiles * 8 == kLargeBlockPairs;
  static constexpr int kRegisters = kLarge ? 168 : 120;  // of a lane
  // Blocks of one warp in a stage, of each record.
  static constexpr int kSteps = kSlice == 3 ? 3 : kFormat == TileFormat::kF16 ? 2 : 4;
  static constexpr int kPartBlocks = kSteps * kMultiplyWarps;
  // A slot holds the sums of as many records as have kSlotUnits (record, token tile) pairs.
  static constexpr int kSlotUnits = kTiles > kTokenTiles ? kTiles : kTokenTiles;
  static constexpr int kSlotFloat4s = kMultiplyWarps * kSlotUnits * 32;
  // Records multiplied at once, and handed on in one slot.
  static constexpr int group(int token_tiles) {
    return kTiles > token_tiles ? kTiles / token_tiles : 1;
  }
  static_assert(kTiles == 1 || kSlice == kSteps,
                "several records only if a stage holds them whole");
};

struct StageHeader {
  int block;  // of ExpertLists::blocks; -1: no more records
  int tile;   // the first
};

// Shared memory, in this order; stages are 128-byte aligned.
template <class Shape>
struct StreamShared {
  std::byte* stages;     // [num_stages][stage_stride]
  float4* slots;         // [kSlots][kMultiplyWarps][kSlotUnits][32]
  uint64_t* barriers;    // announced, full, empty [kMaxStages] each, slot full, slot empty [kSlots]
  StageHeader* headers;  // [kMaxStages] of stages, [kSlots] of slots
  ExpertBlock* blocks;   // [max_blocks]

  static constexpr int kFixedBytes = kSlots * Shape::kSlotFloat4s * 16 +
                                     (3 * kMaxStages + 2 * kSlots) * 8 +
                                     (kMaxStages + kSlots) * static_cast<int>(sizeof(StageHeader));

  static int bytes(int num_stages, int stage_stride, int max_blocks) {
    return num_stages * stage_stride + kFixedBytes +
           max_blocks * static_cast<int>(sizeof(ExpertBlock));
  }
  __device__ StreamShared(std::byte* base, int num_stages, int stage_stride)
      : stages(base),
        slots(reinterpret_cast<float4*>(base + num_stages * stage_stride)),
        barriers(reinterpret_cast<uint64_t*>(slots + kSlots * Shape::kSlotFloat4s)),
        headers(reinterpret_cast<StageHeader*>(barriers + 3 * kMaxStages + 2 * kSlots)),
        blocks(reinterpret_cast<ExpertBlock*>(headers + kMaxStages + kSlots)) {}

  // The stage's header stands; its bytes are on their way.
  __device__ uint32_t announced(int stage) const { return ptx::shared_address(barriers + stage); }
  __device__ uint32_t full(int stage) const { return announced(kMaxStages + stage); }
  __device__ uint32_t empty(int stage) const { return announced(2 * kMaxStages + stage); }
  __device__ uint32_t slot_full(int slot) const { return announced(3 * kMaxStages + slot); }
  __device__ uint32_t slot_empty(int slot) const {
    return announced(3 * kMaxStages + kSlots + slot);
  }
  __device__ StageHeader& slot_header(int slot) const { return headers[kMaxStages + slot]; }
};

struct StreamParams {
  TileMatrix weights;
  ExpertLists lists;
  int* next_item;  // in lists.counts
  int max_blocks;
  int num_stages, stage_stride;
};

// One thread, before the CTA's next __syncthreads().
template <class Shape>
__device__ __forceinline__ void init_barriers(const StreamParams& p,
                                              const StreamShared<Shape>& shared) {
  for (int i = 0; i < p.num_stages; ++i) {
    ptx::mbarrier_init(shared.announced(i), 1);
    ptx::mbarrier_init(shared.full(i), 1);
    ptx::mbarrier_init(shared.empty(i), kMultiplyWarps * kWarpArrivals);
  }
  for (int i = 0; i < kSlots; ++i) {
    ptx::mbarrier_init(shared.slot_full(i), kMultiplyWarps * kWarpArrivals);
    ptx::mbarrier_init(shared.slot_empty(i), kWarpArrivals);
  }
  ptx::fence_mbarrier_init();
}

// All threads: the lists' blocks into shared memory. Returns how many there are.
template <class Shape>
__device__ __forceinline__ int read_blocks(const StreamParams& p,
                                           const StreamShared<Shape>& shared) {
  const ExpertListCounts& counts = *p.lists.counts;
  const ExpertBlock* blocks = Shape::kLarge ? p.lists.large_blocks : p.lists.blocks;
  const int count = min(Shape::kLarge ? counts.num_large_blocks : counts.num_blocks, p.max_blocks);
  for (int i = static_cast<int>(threadIdx.x); i < p.max_blocks; i += kStreamThreads) {
    shared.blocks[i] = blocks[i];
  }
  __syncthreads();
  return count;
}

// As many stages as `ring_bytes` hold.
template <class Shape>
StreamParams stream_params(const TileMatrix& weights, const ExpertLists& lists, int* next_item,
                           int num_pairs, int ring_bytes) {
  const int blocks = Shape::kTiles * std::min(weights.num_blocks(), Shape::kPartBlocks);
  const int stride =
      (blocks * Shape::kBlockBytes + Shape::kTiles * kRowScaleBytes + 127) / 128 * 128;
  return {.weights = weights,
          .lists = lists,
          .next_item = next_item,
          .max_blocks = max_expert_blocks(num_pairs, weights.num_experts,
                                          Shape::kLarge ? kLargeBlockPairs : kMaxBlockPairs),
          .num_stages = std::clamp(ring_bytes / stride, 2, kMaxStages),
          .stage_stride = stride};
}

}  // namespace warproll::moe
