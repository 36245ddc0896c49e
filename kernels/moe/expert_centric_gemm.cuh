// expert_centric_gemm: what gate_up and down of the expert-centric path are both made of. A
// persistent CTA walks work items: 128 weight rows (8 records) of an expert times a block of at
// most 256 of its pairs. Roles by warpgroup:
//   0      loads: weights by bulk copies, the pairs' rows of activations by gathering 16-byte
//          copies, 64 columns a stage, into a ring in shared memory. It runs ahead across items.
//          Activations of two terms: 32 columns of each.
//   1, 2   multiply: 64 rows each, a record a warp, and hand the sums to the Op.
// Weights are M of the tensor core, pairs its N (a multiple of 32 chosen by the block's size), and
// weights go through registers, where FP8 becomes F16. Internal to kernels/moe/*.cu.
#pragma once

#include <cuda.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/moe/expert_centric_items.cuh"
#include "kernels/moe/expert_centric_multiply.cuh"
#include "kernels/moe/tiles.h"
#include "kernels/moe/with_format.cuh"

namespace warproll::moe {

// ---- load ----

// Arrives once this thread's copies so far have landed.
__device__ __forceinline__ void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// A box of the map, at column x and row y; counts on `barrier`.
__device__ __forceinline__ void box_load(uint32_t to, const CUtensorMap& map, int x, int y,
                                         uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(barrier), "l"(policy)
      : "memory");
}

__device__ __forceinline__ uint64_t keep_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

template <class Shared>
__device__ void load_items(const GemmParams& p, const Shared& shared) {
  constexpr int kRowStep = kLoadThreads / 8;
  constexpr int kRows = kMaxTokenBlock / kRowStep;  // of a thread
  constexpr int kGroup = 4;  // addresses made at once: a copy's registers are free again only late
  const int me = static_cast<int>(threadIdx.x);
  const int chunk = me % 8, row = me / 8;  // of rows row, row + 16, ..
  const uint32_t place = static_cast<uint32_t>(row * 128 + (chunk ^ row % 8) * 16);
  const int cols = p.weights.cols * Shared::kTerms;  // of a row of activations
  const int row_groups = row_groups_of(p.weights), num_items = *p.num_blocks * row_groups;
  const uint64_t once = ptx::evict_first_policy(), again = keep_policy();
  GemmRing<Shared> ring;
  for (int i = static_cast<int>(blockIdx.x); i < num_items; i += static_cast<int>(gridDim.x)) {
    const GemmItem item = item_at(p, i, row_groups);
    const int record = item.expert * p.weights.num_tiles + item.record;
    uint32_t source[kRows];  // in units of 16 bytes
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int position = item.first + min(row + r * kRowStep, item.count - 1);
      const int from = p.rows == nullptr ? position : p.rows[position];
      source[r] = static_cast<uint32_t>(from) * static_cast<uint32_t>(cols / 8) + chunk;
    }
    for (int column = 0; column < cols; column += kStageCols) {
      const uint32_t full = shared.full(ring.index), tokens = shared.tokens(ring.index);
      ptx::mbarrier_wait(shared.empty(ring.index), ring.parity ^ 1);
      if (me == 0) {
        // Past a record's end, and past the last record, the box is zeros.
        ptx::mbarrier_arrive_expect(full, kItemRecords * Shared::kRecordBytes);
        box_load(tokens + Shared::kTokenBytes, p.records,
                 column / kStageCols * (Shared::kRecordBytes / 8), record, full,
                 item.siblings == 1 ? once : again);
      }
      // Half a stage of columns is multiplied as a whole one, with zeros.
      const bool present = column + chunk * 8 < cols;
      const uint32_t to = tokens + place;
      const auto* from = reinterpret_cast<const uint4*>(p.activations + column);
#pragma unroll
      for (int r = 0; r < kRows; r += kGroup) {
        // Columns past the last keep what the stage held: their sums are not stored.
        if (r * kRowStep < item.count) {
          const uint4* at[kGroup];
#pragma unroll
          for (int j = 0; j < kGroup; ++j) at[j] = from + source[r + j];
          asm volatile("" : "+l"(at[0]), "+l"(at[1]), "+l"(at[2]), "+l"(at[3]));
#pragma unroll
          for (int j = 0; j < kGroup; ++j)
            ptx::cp_async_16(to + (r + j) * kRowStep * 128, at[j], present);
        }
      }
      arrive_after_copies(full);
      ring.advance();
    }
  }
}

// ---- multiply ----

template <int kSteps, class Shared, class Op>
__device__ __forceinline__ void finish_item(const GemmParams& p, const Shared& shared,
                                            GemmRing<Shared>& ring, const GemmItem& item,
                                            const Op& op) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int record = item.record + (static_cast<int>(threadIdx.x) - kLoadThreads) / 32;
  const bool present = record < p.weights.num_tiles;
  const auto* row_scales =
      reinterpret_cast<const uint16_t*>(p.weights.row_scales()) +
      (static_cast<int64_t>(item.expert) * p.weights.num_tiles + (present ? record : item.record)) *
          kTileRows +
      lane / 4;
  const uint32_t low = row_scales[0], high = row_scales[8];
  float d[kSteps * kTokenStep / 2];
  BlockScale scale;
  if constexpr (Shared::kTerms == 2) {
    multiply_item_of_two_terms(shared, ring, p.weights.num_blocks(), d, scale);
  } else {
    multiply_item(shared, ring, p.weights.num_blocks(), d, scale);
  }
  if (present) {
    op.store(item.first, item.count, record, __uint_as_float(low << 16),
             __uint_as_float(high << 16), d);
  }
}

template <class Shared, class Op>
__device__ __forceinline__ void multiply_items(const GemmParams& p, const Shared& shared,
                                               const Op& op) {
  const int row_groups = row_groups_of(p.weights), num_items = *p.num_blocks * row_groups;
  const int step = static_cast<int>(gridDim.x);
  GemmRing<Shared> ring;
  for (int i = static_cast<int>(blockIdx.x); i < num_items; i += step) {
    const GemmItem item = item_at(p, i, row_groups);
    // Six sizes: with more of them the compiler runs out of registers and serialises wgmma.
    switch ((item.count + kTokenStep - 1) / kTokenStep) {
      case 1:
      case 2:
        finish_item<2>(p, shared, ring, item, op);
        break;
      case 3:
        finish_item<3>(p, shared, ring, item, op);
        break;
      case 4:
        finish_item<4>(p, shared, ring, item, op);
        break;
      case 5:
        finish_item<5>(p, shared, ring, item, op);
        break;
      case 6:
        finish_item<6>(p, shared, ring, item, op);
        break;
      default:
        finish_item<8>(p, shared, ring, item, op);
        break;
    }
  }
}

template <class Shared, class Op>
__global__ void __launch_bounds__(kGemmThreads, 1)
    gemm_kernel(const __grid_constant__ GemmParams p, const __grid_constant__ Op op) {
  extern __shared__ __align__(1024) std::byte memory[];
  const Shared shared{memory};
  if (threadIdx.x == 0) {
    for (int s = 0; s < Shared::kStages; ++s) {
      ptx::mbarrier_init(shared.full(s), kLoadThreads + 1);
      ptx::mbarrier_init(shared.empty(s), kMultiplyThreads / 32 * kWarpArrivals);
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

template <class Shared>
CUtensorMap record_map(const TileMatrix& weights) {
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found = {};
  WARPROLL_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                                       cudaEnableDefault, &found));
  CUtensorMap map = {};
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(weights.record_bytes() / 8),
                               static_cast<cuuint64_t>(weights.num_records())};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(weights.record_bytes())};
  const cuuint32_t box[2] = {Shared::kRecordBytes / 8, kItemRecords};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(
      &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 2, const_cast<std::byte*>(weights.data), sizes,
      strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  WARPROLL_CUDA_CHECK(result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue);
  return map;
}

// Grid: one CTA an SM.
template <class Shared, class Op>
void launch_gemm_shared(GemmParams p, const Op& op, cudaStream_t stream) {
  p.records = record_map<Shared>(p.weights);
  LaunchConfig config(dim3(static_cast<unsigned>(num_multiprocessors())), kGemmThreads,
                      Shared::kBytes, stream);
  config.programmatic();
  config.run(gemm_kernel<Shared, Op>, p, op);
}

template <int kTerms = 1, class Op>
void launch_gemm(const GemmParams& p, const Op& op, cudaStream_t stream) {
  with_format(p.weights.format, [&]<TileFormat kFormat> {
    launch_gemm_shared<GemmShared<kFormat, kTerms>>(p, op, stream);
  });
}

}  // namespace warproll::moe
