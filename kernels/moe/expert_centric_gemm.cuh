// expert_centric_gemm: what gate_up and down of the expert-centric path are both made of. A
// persistent CTA walks work items: 128 weight rows (8 records) of an expert times a block of at most
// 256 of its pairs. Roles by warpgroup:
//   0      loads: weights by bulk copies, the pairs' rows of activations by gathering 16-byte copies,
//          64 columns a stage, into a ring in shared memory. It runs ahead across items.
//   1, 2   multiply: 64 rows each, a record a warp, and hand the sums to the Op.
// Weights are M of the tensor core, pairs its N (a multiple of 32 chosen by the block's size), and
// weights go through registers, where FP8 becomes F16. Internal to kernels/moe/*.cu.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/moe/expert_centric_mma.cuh"
#include "kernels/moe/tiles.h"

namespace warproll::moe {

inline constexpr int kMaxTokenBlock = 256;
inline constexpr int kTokenStep = 32;     // N is a multiple
inline constexpr int kItemRecords = 8;
inline constexpr int kStageBlocks = 2;    // blocks of 32 columns in a stage
inline constexpr int kLoadThreads = 128;
inline constexpr int kMultiplyThreads = 256;
inline constexpr int kGemmThreads = kLoadThreads + kMultiplyThreads;
// Of a lane, out of the 168 it starts with.
inline constexpr int kLoadRegisters = 56;
inline constexpr int kMultiplyRegisters = 224;

// Neighbouring pairs, in sorted order, of one expert.
struct alignas(16) TokenBlock {
  int32_t first;     // sorted position
  int16_t count;     // 1 .. kMaxTokenBlock
  int16_t expert;
  int32_t head;      // index of the expert's first block
  int32_t siblings;  // how many the expert has
};

struct GemmParams {
  TileMatrix weights;
  const TokenBlock* blocks;
  const int32_t* num_blocks;
  const uint16_t* activations;  // F16 [rows, cols]
  const int32_t* rows;          // [sorted position] row of activations; null: the position itself
};

template <TileFormat kFormat>
struct GemmShared {
  static constexpr int kBlockBytes = tile_block_bytes(kFormat);
  static constexpr int kRecordBytes = kStageBlocks * kBlockBytes;  // of a stage
  static constexpr int kTokenBytes = kMaxTokenBlock * 128;
  static constexpr int kStride = kTokenBytes + (kItemRecords * kRecordBytes + 1023) / 1024 * 1024;
  static constexpr int kStages = kFormat == TileFormat::kF16 ? 4 : 5;
  static constexpr int kBytes = kStages * kStride + 2 * kStages * 8;

  std::byte* base;

  // Tokens of a stage come first: 1024-byte aligned.
  __device__ uint32_t tokens(int stage) const { return ptx::shared_address(base + stage * kStride); }
  __device__ const std::byte* weights(int stage) const { return base + stage * kStride + kTokenBytes; }
  __device__ uint32_t full(int stage) const {
    return ptx::shared_address(base + kStages * kStride + stage * 8);
  }
  __device__ uint32_t empty(int stage) const { return full(kStages + stage); }
};

template <TileFormat kFormat>
struct GemmRing {
  int index = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++index == GemmShared<kFormat>::kStages) {
      index = 0;
      parity ^= 1;
    }
  }
};

struct GemmItem {
  int first, count, expert, siblings;
  int record;  // of the expert, the first of kItemRecords
};

// Items of an expert follow each other, and those that share weights are next to each other, so that
// CTAs running at once find weights and activations in L2.
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

// ---- load ----

__device__ __forceinline__ void copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Arrives once this thread's copies so far have landed.
__device__ __forceinline__ void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ uint64_t keep_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

template <TileFormat kFormat>
__device__ void load_items(const GemmParams& p, const GemmShared<kFormat>& shared) {
  using Shared = GemmShared<kFormat>;
  constexpr int kRowStep = kLoadThreads / 8;
  const int me = static_cast<int>(threadIdx.x);
  const int chunk = me % 8, row = me / 8;  // of rows row, row + 16, ..
  const uint32_t place = static_cast<uint32_t>(row * 128 + (chunk ^ row % 8) * 16);
  const int cols = p.weights.cols, record_bytes = p.weights.record_bytes();
  const int row_groups = row_groups_of(p.weights), num_items = *p.num_blocks * row_groups;
  const uint64_t once = ptx::evict_first_policy(), again = keep_policy();
  GemmRing<kFormat> ring;
  for (int i = static_cast<int>(blockIdx.x); i < num_items; i += static_cast<int>(gridDim.x)) {
    const GemmItem item = item_at(p, i, row_groups);
    const int rows = (item.count + kTokenStep - 1) / kTokenStep * kTokenStep;
    const int records = min(kItemRecords, p.weights.num_tiles - item.record);
    const std::byte* weights =
        p.weights.data +
        (static_cast<int64_t>(item.expert) * p.weights.num_tiles + item.record + me) * record_bytes;
    uint32_t source[kMaxTokenBlock / kRowStep];  // in units of 16 bytes
#pragma unroll
    for (int r = 0; r < kMaxTokenBlock / kRowStep; ++r) {
      // The columns past the last are copies of it.
      const int position = item.first + min(row + r * kRowStep, item.count - 1);
      const int from = p.rows == nullptr ? position : p.rows[position];
      source[r] = static_cast<uint32_t>(from) * static_cast<uint32_t>(cols / 8) + chunk;
    }
    for (int column = 0; column < cols; column += kStageBlocks * kTileBlock) {
      const int blocks = min(kStageBlocks, (cols - column) / kTileBlock);
      const uint32_t full = shared.full(ring.index);
      ptx::mbarrier_wait(shared.empty(ring.index), ring.parity ^ 1);
      if (me < 32) {
        const uint32_t bytes = static_cast<uint32_t>(blocks * Shared::kBlockBytes);
        if (me == 0) ptx::mbarrier_arrive_expect(full, bytes * static_cast<uint32_t>(records));
        __syncwarp();
        if (me < records) {
          const uint32_t to = shared.tokens(ring.index) + Shared::kTokenBytes +
                              static_cast<uint32_t>(me * Shared::kRecordBytes);
          ptx::bulk_load(to, weights + column / kTileBlock * Shared::kBlockBytes, bytes, full,
                         item.siblings == 1 ? once : again);
        }
      }
      if (column + chunk * 8 < cols) {
        const uint32_t to = shared.tokens(ring.index) + place;
        const auto* from = reinterpret_cast<const uint4*>(p.activations + column);
#pragma unroll
        for (int r = 0; r < kMaxTokenBlock / kRowStep; r += kTokenStep / kRowStep) {
          if (r * kRowStep < rows) {
            copy_16(to + r * kRowStep * 128, from + source[r]);
            copy_16(to + (r + 1) * kRowStep * 128, from + source[r + 1]);
          }
        }
      } else {
        // Half a stage of columns: the other half is multiplied too, with weights of 0.
        for (int r = 0; r < rows; r += kRowStep) {
          asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(
                           shared.tokens(ring.index) + place + static_cast<uint32_t>(r) * 128),
                       "r"(0)
                       : "memory");
        }
        __threadfence_block();
      }
      arrive_after_copies(full);
      ring.advance();
    }
  }
}

// ---- multiply ----

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
  // The A operands of two products of 16 columns. The absent block of half a stage is 0.
  __device__ __forceinline__ void unpack(bool present, uint32_t (&a)[8]) const {
    if constexpr (kFormat == TileFormat::kF16) {
      a[0] = w0.x, a[1] = w0.y, a[2] = w0.z, a[3] = w0.w;
      a[4] = w1.x, a[5] = w1.y, a[6] = w1.z, a[7] = w1.w;
    } else {
      ptx::e4m3x4_to_f16x2(w0.x, a[0], a[2]);
      ptx::e4m3x4_to_f16x2(w0.z, a[1], a[3]);
      ptx::e4m3x4_to_f16x2(w0.y, a[4], a[6]);
      ptx::e4m3x4_to_f16x2(w0.w, a[5], a[7]);
    }
    if constexpr (kFormat == TileFormat::kMxfp8) {
      const uint32_t low = __byte_perm(scales, 0, 0x0404);  // a high byte into both halves
      const uint32_t high = __byte_perm(scales, 0, 0x1414);
#pragma unroll
      for (int j = 0; j < 8; ++j) a[j] = ptx::mul_f16x2(a[j], j % 2 == 0 ? low : high);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) a[j] = present ? a[j] : 0u;
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
template <TileFormat kFormat, int kCount>
__device__ __forceinline__ void multiply_item(const GemmShared<kFormat>& shared,
                                              GemmRing<kFormat>& ring, int num_blocks,
                                              float (&d)[kCount], BlockScale& scale) {
  using Shared = GemmShared<kFormat>;
  constexpr bool kScaled = kFormat == TileFormat::kFp8Block;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int record = (static_cast<int>(threadIdx.x) - kLoadThreads) / 32;
  const auto landed = [&] {
    ptx::mbarrier_wait(shared.full(ring.index), ring.parity);
    fence_async_proxy();
    return shared.weights(ring.index) + record * Shared::kRecordBytes;
  };
  const auto release = [&](int stage) {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(shared.empty(stage));
  };
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
    const bool second = block + 1 < num_blocks;
    if constexpr (kScaled) scale.change(weights, even, d);
    fence_products();
    multiply<0>(d, even, tokens);
    commit_products();
    const std::byte* const odd_block = weights + Shared::kBlockBytes;
    raw.load(odd_block, lane);
    wait_products<1>();
    if (last_stage >= 0) release(last_stage);
    last_stage = stage;
    raw.unpack(second, odd);
    if constexpr (kScaled) {
      if (second) scale.change(odd_block, odd, d);
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

template <TileFormat kFormat, int kSteps, class Op>
__device__ __forceinline__ void finish_item(const GemmParams& p, const GemmShared<kFormat>& shared,
                                            GemmRing<kFormat>& ring, const GemmItem& item,
                                            const Op& op) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int record = item.record + (static_cast<int>(threadIdx.x) - kLoadThreads) / 32;
  const bool present = record < p.weights.num_tiles;
  const auto* row_scales = reinterpret_cast<const uint16_t*>(p.weights.row_scales()) +
                           (static_cast<int64_t>(item.expert) * p.weights.num_tiles +
                            (present ? record : item.record)) *
                               kTileRows +
                           lane / 4;
  const uint32_t low = row_scales[0], high = row_scales[8];
  float d[kSteps * kTokenStep / 2];
  BlockScale scale;
  multiply_item<kFormat>(shared, ring, p.weights.num_blocks(), d, scale);
  if (present) {
    op.store(item.first, item.count, record, __uint_as_float(low << 16),
             __uint_as_float(high << 16), d);
  }
}

template <TileFormat kFormat, class Op>
__device__ __forceinline__ void multiply_items(const GemmParams& p,
                                               const GemmShared<kFormat>& shared, const Op& op) {
  const int row_groups = row_groups_of(p.weights), num_items = *p.num_blocks * row_groups;
  const int step = static_cast<int>(gridDim.x);
  GemmRing<kFormat> ring;
  for (int i = static_cast<int>(blockIdx.x); i < num_items; i += step) {
    const GemmItem item = item_at(p, i, row_groups);
    switch ((item.count + kTokenStep - 1) / kTokenStep) {
      case 1: finish_item<kFormat, 1>(p, shared, ring, item, op); break;
      case 2: finish_item<kFormat, 2>(p, shared, ring, item, op); break;
      case 3: finish_item<kFormat, 3>(p, shared, ring, item, op); break;
      case 4: finish_item<kFormat, 4>(p, shared, ring, item, op); break;
      case 5: finish_item<kFormat, 5>(p, shared, ring, item, op); break;
      case 6: finish_item<kFormat, 6>(p, shared, ring, item, op); break;
      case 7: finish_item<kFormat, 7>(p, shared, ring, item, op); break;
      default: finish_item<kFormat, 8>(p, shared, ring, item, op); break;
    }
  }
}

template <TileFormat kFormat, class Op>
__global__ void __launch_bounds__(kGemmThreads, 1)
    gemm_kernel(const __grid_constant__ GemmParams p, const __grid_constant__ Op op) {
  extern __shared__ __align__(1024) std::byte memory[];
  const GemmShared<kFormat> shared{memory};
  if (threadIdx.x == 0) {
    for (int s = 0; s < GemmShared<kFormat>::kStages; ++s) {
      ptx::mbarrier_init(shared.full(s), kLoadThreads + 1);
      ptx::mbarrier_init(shared.empty(s), kMultiplyThreads / 32);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::wait_for_previous_kernel();
  ptx::allow_next_kernel();
  if (threadIdx.x < kLoadThreads) {
    ptx::keep_registers<kLoadRegisters>();
    load_items(p, shared);
  } else {
    ptx::take_registers<kMultiplyRegisters>();
    multiply_items(p, shared, op);
  }
}

// Grid: one CTA an SM.
template <TileFormat kFormat, class Op>
void launch_gemm_format(const GemmParams& p, const Op& op, cudaStream_t stream) {
  LaunchConfig config(dim3(static_cast<unsigned>(num_multiprocessors())), kGemmThreads,
                      GemmShared<kFormat>::kBytes, stream);
  config.programmatic();
  config.run(gemm_kernel<kFormat, Op>, p, op);
}

template <class Op>
void launch_gemm(const GemmParams& p, const Op& op, cudaStream_t stream) {
  switch (p.weights.format) {
    case TileFormat::kF16: return launch_gemm_format<TileFormat::kF16>(p, op, stream);
    case TileFormat::kMxfp8: return launch_gemm_format<TileFormat::kMxfp8>(p, op, stream);
    case TileFormat::kFp8Block: return launch_gemm_format<TileFormat::kFp8Block>(p, op, stream);
  }
}

}  // namespace warproll::moe
