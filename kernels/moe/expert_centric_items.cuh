// What the roles of expert_centric_gemm.cuh share: parameters, the ring in shared memory, and the
// order of work items. Internal to kernels/moe/*.cu.
#pragma once

#include <cuda.h>

#include "kernels/cuda/ptx.cuh"
#include "kernels/moe/tiles.h"

namespace warproll::moe {

inline constexpr int kMaxTokenBlock = 256;
inline constexpr int kTokenStep = 32;  // N is a multiple
inline constexpr int kItemRecords = 8;
inline constexpr int kStageCols = 64;  // of activations, all terms, in a stage
inline constexpr int kLoadThreads = 128;
inline constexpr int kMultiplyThreads = 256;
inline constexpr int kGemmThreads = kLoadThreads + kMultiplyThreads;
// Of a lane, out of the 168 it starts with.
inline constexpr int kLoadRegisters = 56;
inline constexpr int kMultiplyRegisters = 224;

// Neighbouring pairs, in sorted order, of one expert.
struct alignas(16) TokenBlock {
  int32_t first;  // sorted position
  int16_t count;  // 1 .. kMaxTokenBlock
  int16_t expert;
  int32_t head;      // index of the expert's first block
  int32_t siblings;  // how many the expert has
};

struct GemmParams {
  TileMatrix weights;
  const TokenBlock* blocks;
  const int32_t* num_blocks;
  const uint16_t* activations;  // F16 [rows, cols / 32, kTerms, 32]
  const int32_t* rows;          // [sorted position] row of activations; null: the position itself
  CUtensorMap records;          // of weights: [records][bytes / 8], boxes of a stage; launch_gemm()
};

// kTerms: how many F16 add up to an activation, 1 or 2.
template <TileFormat kFormat_, int kTerms_>
struct GemmShared {
  static constexpr TileFormat kFormat = kFormat_;
  static constexpr int kTerms = kTerms_;
  static constexpr int kStageBlocks = kStageCols / kTileBlock / kTerms;  // of weights
  static constexpr int kBlockBytes = tile_block_bytes(kFormat);
  static constexpr int kRecordBytes = kStageBlocks * kBlockBytes;  // of a stage
  static constexpr int kTokenBytes = kMaxTokenBlock * 128;
  static constexpr int kStride = kTokenBytes + (kItemRecords * kRecordBytes + 1023) / 1024 * 1024;
  static constexpr int kStages = (kTerms == 2 ? 1 : 0) + (kFormat == TileFormat::kF16 ? 4 : 5);
  static constexpr int kBytes = kStages * kStride + 2 * kStages * 8;

  std::byte* base;

  // Tokens of a stage come first: 1024-byte aligned.
  __device__ uint32_t tokens(int stage) const {
    return ptx::shared_address(base + stage * kStride);
  }
  __device__ const std::byte* weights(int stage) const {
    return base + stage * kStride + kTokenBytes;
  }
  __device__ uint32_t full(int stage) const {
    return ptx::shared_address(base + kStages * kStride + stage * 8);
  }
  __device__ uint32_t empty(int stage) const { return full(kStages + stage); }
};

template <class Shared>
struct GemmRing {
  int index = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++index == Shared::kStages) {
      index = 0;
      parity ^= 1;
    }
  }
};

struct GemmItem {
  int first, count, expert, siblings;
  int record;  // of the expert, the first of kItemRecords
};

// Items of an expert follow each other, and those that share weights are next to each other, so
// that CTAs running at once find weights and activations in L2.
__device__ __forceinline__ GemmItem item_at(const GemmParams& p, int index, int row_groups) {
  const TokenBlock any = p.blocks[index / row_groups];
  const int local = index - any.head * row_groups;
  const TokenBlock block = p.blocks[any.head + local % any.siblings];
  return {block.first, block.count, block.expert, any.siblings,
          local / any.siblings * kItemRecords};
}

__device__ __forceinline__ int row_groups_of(const TileMatrix& weights) {
  return (weights.num_tiles + kItemRecords - 1) / kItemRecords;
}

}  // namespace warproll::moe
