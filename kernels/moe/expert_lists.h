// ExpertLists: which (token, k) pairs each expert serves, in device memory, as the MoE kernels read
// it. The router fills it; build_expert_lists() does where the ids are given.
// A pair is p = token * K + k. A block is at most kMaxBlockPairs pairs of one expert: what a warp
// multiplies with a weight row at once. Blocks are in expert order. The same pairs are listed in large
// blocks too, for F16 weights (stream_shared.cuh).
// A pair whose expert id is outside [0, E) is in no block, its weight becomes 0, and it is counted.
// Thread: plain values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"

namespace warproll {

inline constexpr int32_t kMaxBlockPairs = 16;
inline constexpr int32_t kLargeBlockPairs = 32;

struct ExpertBlock {
  int32_t first;  // in pairs[]
  uint16_t expert;
  uint16_t count;  // 1 .. kMaxBlockPairs, or kLargeBlockPairs
};

// The last two hand out work to the CTAs of the MoE kernels, which leave them at 0 again.
struct ExpertListCounts {
  int32_t num_blocks;
  int32_t num_large_blocks;
  int32_t num_active;   // experts with at least one pair
  int32_t num_pairs;    // in blocks
  int32_t num_invalid;  // with an expert id outside [0, E)
  int32_t next_gate_up;
  int32_t next_down;
};

// Pointers into one piece of device memory of expert_lists_bytes().
struct ExpertLists {
  ExpertListCounts* counts = nullptr;
  ExpertBlock* blocks = nullptr;        // [max_expert_blocks()]
  ExpertBlock* large_blocks = nullptr;  // [max_expert_blocks(.., kLargeBlockPairs)]
  int32_t* pairs = nullptr;             // [T * K], grouped by expert
  float* pair_weights = nullptr;        // [T * K], by pair
  unsigned* finished_ctas = nullptr;    // of the kernel that fills the lists; 0 between kernels
};

int32_t max_expert_blocks(int32_t num_pairs, int32_t num_experts,
                          int32_t block_pairs = kMaxBlockPairs);
size_t expert_lists_bytes(int32_t num_pairs, int32_t num_experts);
// The memory must be zeros before its first use.
ExpertLists expert_lists_at(void* memory, int32_t num_pairs, int32_t num_experts);

struct BuildExpertListsParams {
  const int32_t* topk_ids = nullptr;    // [T, K]
  const float* topk_weights = nullptr;  // [T, K]
  ExpertLists lists;
  int32_t num_tokens = 0;   // T, 0 .. 8192
  int32_t num_experts = 0;  // E, 1 .. 512
  int32_t top_k = 0;        // K, 1 .. 16
};
void build_expert_lists(const BuildExpertListsParams& params, cudaStream_t stream);

}  // namespace warproll
