// stream_linear: the multiplying warps. Internal to kernels/step/*.cu.
#pragma once

#include "kernels/moe/fragment.cuh"
#include "kernels/step/stream_linear_activations.cuh"

namespace warproll::stream_linear_detail {

// One block of a record as the A operands of two products (tiles.h), and what they are scaled with.
template <TileFormat kFormat>
struct Block {
  uint32_t a[8];
  float low, high;  // kFp8Block: of rows 0..7 and 8..15

  __device__ __forceinline__ explicit Block(const std::byte* at) {
    moe::load_block<kFormat>(at, a);
    if constexpr (kFormat == TileFormat::kFp8Block) {
      const float2 scale = *reinterpret_cast<const float2*>(at + 512);
      low = scale.x, high = scale.y;
    }
  }

  // sum += block x activations of eight tokens.
  __device__ __forceinline__ void multiply(uint4 x, float (&sum)[4]) const {
    if constexpr (kFormat == TileFormat::kFp8Block) {
      float own[4] = {};
      ptx::mma_16816(own, a[0], a[1], a[2], a[3], x.x, x.y);
      ptx::mma_16816(own, a[4], a[5], a[6], a[7], x.z, x.w);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[j] = fmaf(j < 2 ? low : high, own[j], sum[j]);
    } else {
      ptx::mma_16816(sum, a[0], a[1], a[2], a[3], x.x, x.y);
      ptx::mma_16816(sum, a[4], a[5], a[6], a[7], x.z, x.w);
    }
  }
};

template <class S>
class Multiplier {
 public:
  __device__ Multiplier(const Params& p, const Shared<S>& shared)
      : p_(p), shared_(shared), ring_{.size = p.num_stages} {
    if (my_half_ == 1) ring_.advance();
  }

  __device__ __forceinline__ void run() {
    for (int group = 0; group < p_.num_groups; ++group) {
      const uint4* x = S::kNorm ? shared_.norm->rows[0] : p_.x;
      const int row_granules = S::kNorm ? NormRows::kRowGranules : p_.weight.cols / 8;
      x_.read(p_, x, row_granules, (group * S::kTokenTiles + token_warp_ * S::kTilesOfWarp) * 8,
              first_half<S>() + my_half_, first_chain<S>() + chain_);
      if (p_.resident) {
        ring_ = {.size = p_.num_stages};
        if (my_half_ == 1) ring_.advance();
      }
      for (int tile = worker<S>(); tile < p_.weight.num_tiles; tile += workers<S>()) {
        multiply_tile();
      }
    }
  }

 private:
  // This warp's part of a tile into the slot.
  __device__ __forceinline__ void multiply_tile() {
    float* slot = shared_.slots + slot_.index * S::kSlotFloats;
    uint32_t row_scales = 0;
#pragma unroll
    for (int h = 0; h < S::kHalvesOfWarp; ++h) {
      float sums[S::kTilesOfWarp][4] = {};
      const bool last_half = h + 1 == S::kHalvesOfWarp;
      if constexpr (S::kHalfSteps > 0) {
#pragma unroll
        for (int step = 0; step < S::kHalfSteps; step += S::kSteps) {
          const std::byte* stage = landed();
#pragma unroll
          for (int s = 0; s < S::kSteps; ++s) {
            multiply_block(stage + (s * S::kChainsOfCta + chain_) * S::kBlockBytes, h, step + s, 0,
                           sums);
          }
          if (last_half && step + S::kSteps == S::kHalfSteps) row_scales = scales_of(stage);
          release();
        }
      } else {
        const Columns<S> columns(p_.weight);
        const int half = first_half<S>() + my_half_ + h;
        for (int part = 0; part < columns.stages_of_half; ++part) {
          const std::byte* stage = landed();
          const int first = columns.first(half) + part * S::kStageBlocks;
          const int end = min(columns.end(half), first + S::kStageBlocks);
          for (int b = first + chain_; b < end; b += kChains) {
            multiply_block(stage + (b - first) * S::kBlockBytes, h, 0, b, sums);
          }
          if (last_half && part + 1 == columns.stages_of_half) row_scales = scales_of(stage);
          release();
        }
      }
      if (h == 0) ptx::mbarrier_wait(shared_.slot_empty(slot_.index), slot_.parity ^ 1);
      float* to = slot +
                  (((my_half_ + h) * S::kChainsOfCta + chain_) * S::kTokenTiles +
                   token_warp_ * S::kTilesOfWarp) *
                      8 * kTileFloats +
                  lane_ % 4 * 2 * kTileFloats + lane_ / 4;
#pragma unroll
      for (int i = 0; i < S::kTilesOfWarp; ++i, to += 8 * kTileFloats) {
        to[0] = sums[i][0] * x_.scale(h, i, 0);
        to[kTileFloats] = sums[i][1] * x_.scale(h, i, 1);
        to[8] = sums[i][2] * x_.scale(h, i, 0);
        to[kTileFloats + 8] = sums[i][3] * x_.scale(h, i, 1);
      }
    }
    if (threadIdx.x < kRowScaleBytes / 4)
      reinterpret_cast<uint32_t*>(slot + S::kSumFloats)[threadIdx.x] = row_scales;
    arrive_with_warp(shared_.slot_full(slot_.index));
    slot_.advance();
  }

  __device__ __forceinline__ void multiply_block(const std::byte* at, int h, int step, int block,
                                                 float (&sums)[S::kTilesOfWarp][4]) const {
    const Block<S::kFormat> w(at);
#pragma unroll
    for (int i = 0; i < S::kTilesOfWarp; ++i) w.multiply(x_.at(h, step, i, block), sums[i]);
  }

  __device__ __forceinline__ const std::byte* landed() const {
    ptx::mbarrier_wait(shared_.full(ring_.index), ring_.parity);
    return shared_.stages + ring_.index * S::kStageBytes;
  }
  __device__ __forceinline__ void release() {
    if (!p_.resident) release_stage(shared_.empty(ring_.index));
    ring_.advance();
    if constexpr (S::kHalfWarps == 2) ring_.advance();  // the other half's
  }
  __device__ __forceinline__ uint32_t scales_of(const std::byte* stage) const {
    return reinterpret_cast<const uint32_t*>(stage + S::kScalesAt)[lane_ % 8];
  }

  const Params& p_;
  const Shared<S>& shared_;
  const int lane_ = static_cast<int>(threadIdx.x) % 32;
  const int chain_ = static_cast<int>(threadIdx.x) / 32 % S::kChainsOfCta;
  const int token_warp_ =
      S::kTokenWarps == 1 ? 0 : static_cast<int>(threadIdx.x) / 32 / S::kChainsOfCta;
  // The first half of this warp, counted in the CTA.
  const int my_half_ =
      S::kHalfWarps == 1 ? 0 : static_cast<int>(threadIdx.x) / 32 / S::kChainsOfCta;
  Activations<S> x_;
  RingPlace ring_, slot_{.size = kSlots};
};

}  // namespace warproll::stream_linear_detail
