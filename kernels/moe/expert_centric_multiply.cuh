// One warpgroup's share of a work item of expert_centric_gemm.cuh: 64 weight rows times the item's
// pairs, over all columns. Weights go from the stage through registers, where FP8 becomes F16;
// while the tensor core works on one block of 32 columns, the next is read and converted. Internal
// to kernels/moe/*.cu.
#pragma once

#include "kernels/moe/expert_centric_items.cuh"
#include "kernels/moe/expert_centric_mma.cuh"
#include "kernels/moe/fragment.cuh"
#include "kernels/moe/stream_shared.cuh"

namespace warproll::moe {

// A lane's bytes of a block, and what becomes of them.
template <TileFormat kFormat>
struct RawFragment {
  uint4 w0, w1;     // w1: kF16 only
  uint32_t scales;  // kMxfp8 only

  __device__ __forceinline__ void load(const std::byte* at, int lane) {
    w0 = *reinterpret_cast<const uint4*>(at + lane * 16);
    if constexpr (kFormat == TileFormat::kF16) {
      w1 = *reinterpret_cast<const uint4*>(at + 512 + lane * 16);
    }
    if constexpr (kFormat == TileFormat::kMxfp8) {
      scales = *reinterpret_cast<const uint16_t*>(at + 512 + lane / 4 * 2);
    }
  }
  // The A operands of two products of 16 columns.
  __device__ __forceinline__ void unpack([[maybe_unused]] bool present, uint32_t (&a)[8]) const {
    if constexpr (kFormat == TileFormat::kF16) {
      // `present` is not needed, a box's absent block is zeros; but without the selection the
      // compiler runs out of registers and serialises wgmma.
      const uint32_t w[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
#pragma unroll
      for (int j = 0; j < 8; ++j) a[j] = present ? w[j] : 0u;
    } else {
      unpack_e4m3(w0, a);
    }
    if constexpr (kFormat == TileFormat::kMxfp8) scale_rows_mxfp8(scales, a);
  }
};

// kFp8Block: sums are kept in units of the current block's scales, so that one set of accumulators
// does: when a scale changes, they are multiplied by old / new, which rounds as a sum does.
struct BlockScale {
  float2 current = {1.0f, 1.0f};

  static __device__ __forceinline__ float usable(float next, float now) {
    // A scale of (almost) 0 keeps the unit: its block is made 0 instead.
    return fabsf(next) < 1e-30f ? now : next;
  }
  template <int kCount>
  __device__ __forceinline__ void change(const std::byte* block, uint32_t (&a)[8],
                                         float (&d)[kCount]) {
    const float2 given = *reinterpret_cast<const float2*>(block + 512);
    const float2 next = {usable(given.x, current.x), usable(given.y, current.y)};
    const bool zero_low = fabsf(given.x) < 1e-30f, zero_high = fabsf(given.y) < 1e-30f;
#pragma unroll
    for (int j = 0; j < 8; ++j) a[j] = (j % 2 == 0 ? zero_low : zero_high) ? 0u : a[j];
    wait_products<0>();
    pin(d);
    if (next.x != current.x || next.y != current.y) {
      const float low = current.x / next.x, high = current.y / next.y;
#pragma unroll
      for (int i = 0; i < kCount; ++i) d[i] *= i % 4 < 2 ? low : high;
      current = next;
    }
    pin(d);
  }
};

// The sums of an item's columns 0 .. 2 * kCount - 1.
template <class Shared, int kCount>
__device__ __forceinline__ void multiply_item(const Shared& shared, GemmRing<Shared>& ring,
                                              int num_blocks, float (&d)[kCount],
                                              BlockScale& scale) {
  constexpr TileFormat kFormat = Shared::kFormat;
  constexpr int kStageBlocks = Shared::kStageBlocks;
  constexpr bool kScaled = kFormat == TileFormat::kFp8Block;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int record = (static_cast<int>(threadIdx.x) - kLoadThreads) / 32;
  const auto landed = [&] {
    ptx::mbarrier_wait(shared.full(ring.index), ring.parity);
    ptx::fence_async_proxy();
    return shared.weights(ring.index) + record * Shared::kRecordBytes;
  };
  const auto release = [&](int stage) { release_stage(shared.empty(stage)); };
#pragma unroll
  for (int i = 0; i < kCount; ++i) d[i] = 0.0f;
  uint32_t even[8], odd[8];
  RawFragment<kFormat> raw;
  const std::byte* weights = landed();
  raw.load(weights, lane);
  raw.unpack(true, even);
  int last_stage = -1;
  for (int block = 0; block < num_blocks; block += kStageBlocks) {
    const int stage = ring.index;
    const uint32_t tokens = shared.tokens(stage);
    if constexpr (kScaled) scale.change(weights, even, d);
    fence_products();
    multiply<0>(d, even, tokens);
    commit_products();
    const std::byte* const odd_block = weights + Shared::kBlockBytes;
    raw.load(odd_block, lane);
    wait_products<1>();
    if (last_stage >= 0) release(last_stage);
    last_stage = stage;
    raw.unpack(block + 1 < num_blocks, odd);
    if constexpr (kScaled) {
      if (block + 1 < num_blocks) scale.change(odd_block, odd, d);
    }
    fence_products();
    multiply<1>(d, odd, tokens);
    commit_products();
    ring.advance();
    if (block + kStageBlocks < num_blocks) {
      weights = landed();
      raw.load(weights, lane);
    }
    wait_products<1>();
    raw.unpack(true, even);
  }
  wait_products<0>();
  pin(d);
  release(last_stage);
  if constexpr (kScaled) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) d[i] *= i % 4 < 2 ? scale.current.x : scale.current.y;
  }
}

// The same for activations of two terms: a stage is one block of weights, multiplied with both.
template <class Shared, int kCount>
__device__ __forceinline__ void multiply_item_of_two_terms(const Shared& shared,
                                                           GemmRing<Shared>& ring, int num_blocks,
                                                           float (&d)[kCount], BlockScale& scale) {
  constexpr TileFormat kFormat = Shared::kFormat;
  constexpr bool kScaled = kFormat == TileFormat::kFp8Block;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int record = (static_cast<int>(threadIdx.x) - kLoadThreads) / 32;
  const auto landed = [&] {
    ptx::mbarrier_wait(shared.full(ring.index), ring.parity);
    ptx::fence_async_proxy();
    return shared.weights(ring.index) + record * Shared::kRecordBytes;
  };
  const auto release = [&](int stage) { release_stage(shared.empty(stage)); };
#pragma unroll
  for (int i = 0; i < kCount; ++i) d[i] = 0.0f;
  uint32_t even[8], odd[8];
  RawFragment<kFormat> raw;
  const std::byte* weights = landed();
  raw.load(weights, lane);
  raw.unpack(true, even);
  int last_stage = -1;
  // Multiplies with `now`, the block's operand, while the next one's becomes `next`.
  const auto multiply_stage = [&](uint32_t(&now)[8], uint32_t(&next)[8], bool more) {
    const int stage = ring.index;
    const uint32_t tokens = shared.tokens(stage);
    if constexpr (kScaled) scale.change(weights, now, d);
    fence_products();
    multiply<0>(d, now, tokens);
    multiply<1>(d, now, tokens);
    commit_products();
    ring.advance();
    if (more) {
      weights = landed();
      raw.load(weights, lane);
    }
    wait_products<1>();
    if (last_stage >= 0) release(last_stage);
    last_stage = stage;
    raw.unpack(more, next);
  };
  for (int block = 0;;) {
    multiply_stage(even, odd, block + 1 < num_blocks);
    if (++block == num_blocks) break;
    multiply_stage(odd, even, block + 1 < num_blocks);
    if (++block == num_blocks) break;
  }
  wait_products<0>();
  pin(d);
  release(last_stage);
  if constexpr (kScaled) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) d[i] *= i % 4 < 2 ? scale.current.x : scale.current.y;
  }
}

}  // namespace warproll::moe
