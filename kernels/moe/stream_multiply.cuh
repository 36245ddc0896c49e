// The multiplying role of expert_stream.cuh. Internal to kernels/moe/*.cu.
#pragma once

#include "kernels/moe/block_product.cuh"
#include "kernels/moe/stream_shared.cuh"

namespace warproll::moe {

template <class Shape, class Op>
class Multiplier {
 public:
  __device__ Multiplier(const StreamParams& p, const StreamShared<Shape>& shared, const Op& op)
      : p_(p), shared_(shared), op_(op), ring_{.size = p.num_stages}, slot_{.size = kSlots} {}

  __device__ void run() {
    for (StageHeader next = announced(); next.block >= 0;) {
      const ExpertBlock block = shared_.blocks[next.block];
      if (Op::kTerms == 2 && block.count <= 4) {
        next = run_block<1, Chains::kPacked>(block, next);
      } else if (Shape::kTokenTiles == 1 || block.count <= 8) {
        next = run_block<1, kChains>(block, next);
      } else if (Shape::kTokenTiles == 2 || block.count <= 16) {
        next = run_block<2, kChains>(block, next);
      } else {
        next = run_block<Shape::kTokenTiles, kChains>(block, next);
      }
    }
    wait_for_slot();
    put({.block = -1, .tile = 0});
  }

 private:
  static constexpr TileFormat kFormat = Shape::kFormat;
  static constexpr int kSlice = Shape::kSlice;
  static constexpr int kTiles = Shape::kTiles;

  static constexpr Chains kChains = Op::kTerms == 1 ? Chains::kSteps : Chains::kTerms;
  template <int kTokenTiles, Chains kHow>
  using Activations = BlockActivations<kHow == Chains::kTerms ? 2 : 1, kTokenTiles>;

  // The lane's granules at `block` blocks from the warp's first.
  template <Chains kHow, int kTokenTiles>
  __device__ __forceinline__ Activations<kTokenTiles, kHow> read(
      const uint4* const (&rows)[kTokenTiles], int block) const {
    Activations<kTokenTiles, kHow> x;
#pragma unroll
    for (int n = 0; n < (kHow == Chains::kTerms ? 2 : 1); ++n) {
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i)
        x.term[n][i] = rows[i][block * 4 + n * op_.term_stride()];
    }
    return x;
  }

  __device__ StageHeader announced() const {
    ptx::mbarrier_wait(shared_.announced(ring_.index), ring_.parity);
    return shared_.headers[ring_.index];
  }
  __device__ const std::byte* landed() const {
    ptx::mbarrier_wait(shared_.full(ring_.index), ring_.parity);
    return shared_.stages + ring_.index * p_.stage_stride;
  }
  __device__ void release() {
    release_stage(shared_.empty(ring_.index));
    ring_.advance();
  }
  __device__ void wait_for_slot() const {
    ptx::mbarrier_wait(shared_.slot_empty(slot_.index), slot_.parity ^ 1);
  }
  // The slot, which wait_for_slot() found free, to the finishing warp.
  __device__ void put(const StageHeader& header) {
    if (threadIdx.x == 0) shared_.slot_header(slot_.index) = header;
    arrive_with_warp(shared_.slot_full(slot_.index));
    slot_.advance();
  }

  // Items, the announced `next` first, until one of another block is announced: returns that.
  template <int kTokenTiles, Chains kHow>
  __device__ __forceinline__ StageHeader run_block(const ExpertBlock& block, StageHeader next) {
    const uint4* rows[kTokenTiles];
    const int* pairs = p_.lists.pairs + block.first;
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i) {
      constexpr int kColumns = kHow == Chains::kPacked ? 4 : 8;
      const int column = i * 8 + lane_ / 4 % kColumns;  // past the last: a copy of the first
      const int term = lane_ / 4 / kColumns;
      rows[i] = op_.row(pairs[column < block.count ? column : 0]) + term * op_.term_stride() +
                warp_ * 4 + lane_ % 4;
    }
    op_.wait_for_rows();
    Activations<kTokenTiles, kHow> x[kSlice == 0 ? 1 : kSlice];
#pragma unroll
    for (int step = 0; step < kSlice; ++step) x[step] = read<kHow>(rows, step * kMultiplyWarps);
    const int id = next.block;
    do {
      if constexpr (kTiles > 1) {
        multiply_tiles<kHow>(x, next);
        next = announced();
        continue;
      }
      TileSums<kTokenTiles> sums[1];
      if constexpr (kSlice > 0) {
#pragma unroll
        for (int part = 0; part < kSlice; part += Shape::kSteps) {
          if (part > 0) announced();
          const std::byte* stage = landed();
#pragma unroll
          for (int step = 0; step < Shape::kSteps; ++step) {
            multiply_block<kFormat, kHow>(
                stage + (step * kMultiplyWarps + warp_) * Shape::kBlockBytes, x[part + step],
                sums[0]);
          }
          if (part + Shape::kSteps == kSlice) {
            scale_rows<kHow>(stage + Shape::kPartBlocks * Shape::kBlockBytes, sums);
          }
          release();
        }
      } else {
        for (int left = p_.weights.num_blocks(), first = 0; left > 0; left -= Shape::kPartBlocks) {
          if (first > 0) announced();
          const std::byte* stage = landed();
          for (int b = warp_; b < min(left, Shape::kPartBlocks); b += kMultiplyWarps) {
            multiply_block<kFormat, kHow>(stage + b * Shape::kBlockBytes,
                                          read<kHow>(rows, first + b - warp_), sums[0]);
          }
          if (left <= Shape::kPartBlocks) scale_rows<kHow>(stage + left * Shape::kBlockBytes, sums);
          release();
          first += Shape::kPartBlocks;
        }
      }
      put(next, sums);
      next = announced();
    } while (next.block == id);
    return next;
  }

  // A stage of kTiles whole records, some at a time, as registers allow.
  template <Chains kHow, int kTerms, int kTokenTiles>
  __device__ __forceinline__ void multiply_tiles(
      const BlockActivations<kTerms, kTokenTiles> (&x)[kSlice == 0 ? 1 : kSlice],
      const StageHeader& header) {
    constexpr int kGroup = Shape::group(kTokenTiles);
    const std::byte* stage = landed();
#pragma unroll
    for (int t0 = 0; t0 < kTiles; t0 += kGroup) {
      TileSums<kTokenTiles> sums[kGroup];
#pragma unroll
      for (int step = 0; step < kSlice; ++step) {
#pragma unroll
        for (int t = 0; t < kGroup; ++t) {
          const int at = (t0 + t) * Shape::kPartBlocks + step * kMultiplyWarps + warp_;
          multiply_block<kFormat, kHow>(stage + at * Shape::kBlockBytes, x[step], sums[t]);
        }
      }
      scale_rows<kHow>(
          stage + kTiles * Shape::kPartBlocks * Shape::kBlockBytes + t0 * kRowScaleBytes, sums);
      if (t0 + kGroup == kTiles) release();
      put({header.block, header.tile + t0}, sums);
    }
  }

  template <int kTokenTiles, int kGroup>
  __device__ __forceinline__ void put(const StageHeader& header,
                                      const TileSums<kTokenTiles> (&sums)[kGroup]) {
    wait_for_slot();
    float4* slot =
        shared_.slots + slot_.index * Shape::kSlotFloat4s + warp_ * Shape::kSlotUnits * 32 + lane_;
#pragma unroll
    for (int t = 0; t < kGroup; ++t) {
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i) {
        const auto& s = sums[t].first[i];
        slot[(t * kTokenTiles + i) * 32] = make_float4(s[0], s[1], s[2], s[3]);
      }
    }
    put(header);
  }

  // sums.first = both chains, times the row scales at `scales`: powers of two, exact.
  template <Chains kHow, int kTokenTiles, int kGroup>
  __device__ __forceinline__ void scale_rows(const std::byte* scales,
                                             TileSums<kTokenTiles> (&sums)[kGroup]) const {
    const auto* bits = reinterpret_cast<const uint16_t*>(scales);
#pragma unroll
    for (int t = 0; t < kGroup; ++t) {
      const float low = __uint_as_float(uint32_t{bits[t * kTileRows + lane_ / 4]} << 16);
      const float high = __uint_as_float(uint32_t{bits[t * kTileRows + lane_ / 4 + 8]} << 16);
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i)
        add_chains<kHow>(sums[t].first[i], sums[t].second[i], low, high);
    }
  }

  const StreamParams& p_;
  const StreamShared<Shape>& shared_;
  const Op& op_;
  const int lane_ = static_cast<int>(threadIdx.x) % 32;
  const int warp_ = static_cast<int>(threadIdx.x) / 32;
  RingPlace ring_, slot_;
};

}  // namespace warproll::moe
