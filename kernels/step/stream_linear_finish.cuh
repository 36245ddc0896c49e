// stream_linear: the finishing warps. Internal to kernels/step/*.cu.
#pragma once

#include "kernels/step/stream_linear_shared.cuh"

namespace warproll::stream_linear_detail {

// Adds the chains of every tile in order and stores the outputs, a token tile at a time: a lane has
// four rows of one token. In a cluster a CTA has the sums of its part of the columns. An equal share of
// a group's token tiles is its own; it sends its sums of the others to their CTAs, and adds what comes.
// All that is sent to a CTA, sums and arrivals, is waited for there: so it is there when they come, and
// needs no barrier at the end.
template <class S>
class Finisher {
 public:
  __device__ Finisher(const Params& p, const Shared<S>& shared, int finisher)
      : p_(p),
        shared_(shared),
        finisher_(finisher),
        to_complete_(p.num_groups *
                     ((p.weight.num_tiles - worker<S>() + workers<S>() - 1) / workers<S>())) {}

  __device__ __forceinline__ void run() {
    for (int group = 0; group < p_.num_groups; ++group) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        token_[i] = (group * S::kTokenTiles + tile_of(rank_, i)) * 8 + in_tile_;
        scale_[i] = 1.0f;
        if (!S::kBf16 && !S::kNorm && token_[i] < p_.num_tokens) scale_[i] = p_.x_scales[token_[i]];
      }
      for (int tile = worker<S>(); tile < p_.weight.num_tiles; tile += workers<S>()) {
        finish(tile);
      }
      if constexpr (S::kSplit > 1) complete();
    }
  }

 private:
  static constexpr int kOwn = S::kOwn;

  // Token tile i of the warp of our number in CTA `rank`.
  __device__ __forceinline__ int tile_of(int rank, int i) const {
    return rank * (S::kTokenTiles / S::kSplit) + finisher_ * kOwn + i;
  }

  __device__ __forceinline__ void finish(int tile) {
    ptx::mbarrier_wait(shared_.slot_full(slot_.index), slot_.parity);
    if constexpr (S::kNorm) {  // older than any slot
      if (token_[0] < p_.num_tokens) scale_[0] = shared_.norm->scales[token_[0]];
    }
    const float* slot = shared_.slots + slot_.index * S::kSlotFloats;
    const uint2 scales = reinterpret_cast<const uint2*>(slot + S::kSumFloats)[lane_ % 4];
    float4 sums[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) sums[i] = sum_of_chains(slot, tile_of(rank_, i));
    if constexpr (S::kSplit == 1) {
      arrive_with_warp(shared_.slot_empty(slot_.index));
#pragma unroll
      for (int i = 0; i < kOwn; ++i) store(tile, i, sums[i], scales);
    } else {
      float4 others[S::kSplit - 1][kOwn];
#pragma unroll
      for (int r = 1; r < S::kSplit; ++r) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i)
          others[r - 1][i] = sum_of_chains(slot, tile_of(rank_ ^ r, i));
      }
      arrive_with_warp(shared_.slot_empty(slot_.index));
      send(others);
      complete();
      kept_tile_ = tile;
      kept_scales_ = scales;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) kept_[i] = sums[i];
    }
    slot_.advance();
  }

  // The chains of a quarter in order, quarters in pairs, halves.
  __device__ __forceinline__ float4 sum_of_chains(const float* slot, int token_tile) const {
    constexpr int kQuarters = S::kHalves * S::kChainsOfCta / kQuarter;
    const float* from = slot + (token_tile * 8 + in_tile_) * kTileFloats + lane_ % 4 * 4;
    float4 quarters[4] = {};
#pragma unroll
    for (int q = 0; q < kQuarters; ++q) {
#pragma unroll
      for (int c = 0; c < kQuarter; ++c) {
        const float4 v = *reinterpret_cast<const float4*>(
            from + (q * kQuarter + c) * S::kTokenTiles * 8 * kTileFloats);
        quarters[q] = c == 0 ? v : add(quarters[q], v);
      }
    }
    if constexpr (kQuarters == 1) return quarters[0];
    if constexpr (kQuarters == 2) return add(quarters[0], quarters[1]);
    return add(add(quarters[0], quarters[1]), add(quarters[2], quarters[3]));
  }

  // The CTAs' warps of the same number are partners. `received` has the places of the slots.
  __device__ __forceinline__ float4* received(int place, int source, int i) const {
    return shared_.received +
           (((place * S::kSplit + source) * S::kFinishers + finisher_) * kOwn + i) * 32 + lane_;
  }
  __device__ __forceinline__ void send(
      const float4 (&sums)[std::max(S::kSplit - 1, 1)][kOwn]) const {
    ptx::mbarrier_wait(shared_.may_send(slot_.index), slot_.parity ^ 1);
#pragma unroll
    for (int r = 1; r < S::kSplit; ++r) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        ptx::store_to_cluster(ptx::address_in_cluster(
                                  ptx::shared_address(received(slot_.index, rank_, i)), rank_ ^ r),
                              sums[r - 1][i],
                              ptx::address_in_cluster(shared_.arrived(slot_.index), rank_ ^ r));
      }
    }
  }
  // The tile before, with the other CTAs' parts: a tile later, so that they are there by then.
  __device__ __forceinline__ void complete() {
    if (kept_tile_ < 0) return;
    const uint32_t arrived = shared_.arrived(receive_.index);
    if (lane_ == 0) ptx::mbarrier_arrive_expect(arrived, (S::kSplit - 1) * kOwn * 32 * 16);
    ptx::mbarrier_wait(arrived, receive_.parity);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      float4 parts[S::kSplit];
#pragma unroll
      for (int r = 0; r < S::kSplit; ++r)
        parts[r] = r == rank_ ? kept_[i] : *received(receive_.index, r, i);
      kept_[i] = add(parts[0], parts[1 % S::kSplit]);
      if constexpr (S::kSplit == 4) kept_[i] = add(kept_[i], add(parts[2], parts[3]));
    }
    if (--to_complete_ >= kSlots) {  // else nobody waits for it, and they may have left
      release_to_cluster(S::kSplit, [&](int lane) {
        return ptx::address_in_cluster(shared_.may_send(receive_.index), rank_ ^ lane);
      });
    }
    receive_.advance();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) store(kept_tile_, i, kept_[i], kept_scales_);
    kept_tile_ = -1;
  }

  static __device__ __forceinline__ float4 add(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
  }
  __device__ __forceinline__ void store(int tile, int i, float4 v, uint2 row_scales) const {
    if (token_[i] >= p_.num_tokens) return;
    // Powers of two: exact.
    v.x *= __uint_as_float(row_scales.x << 16) * scale_[i];
    v.y *= __uint_as_float(row_scales.x & 0xffff0000u) * scale_[i];
    v.z *= __uint_as_float(row_scales.y << 16) * scale_[i];
    v.w *= __uint_as_float(row_scales.y & 0xffff0000u) * scale_[i];
    const int64_t at = static_cast<int64_t>(token_[i]) * p_.weight.num_tiles * kTileRows +
                       tile * kTileRows + lane_ % 4 * 4;
    if (p_.y_f32 != nullptr) {
      *reinterpret_cast<float4*>(p_.y_f32 + at) = v;
    } else {
      const __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y);
      const __nv_bfloat162 high = __floats2bfloat162_rn(v.z, v.w);
      *reinterpret_cast<uint2*>(p_.y + at) = make_uint2(*reinterpret_cast<const uint32_t*>(&low),
                                                        *reinterpret_cast<const uint32_t*>(&high));
    }
  }

  const Params& p_;
  const Shared<S>& shared_;
  const int finisher_;
  const int lane_ = static_cast<int>(threadIdx.x) % 32;
  const int rank_ = S::kSplit == 1 ? 0 : static_cast<int>(ptx::cluster_rank());
  const int in_tile_ = lane_ / 8 + lane_ / 4 % 2 * 4;  // so that eight lanes read all banks
  RingPlace slot_{.size = kSlots}, receive_{.size = kSlots};
  int token_[kOwn];  // whose rows this lane finishes
  float scale_[kOwn];
  float4 kept_[kOwn];
  uint2 kept_scales_ = {};
  int kept_tile_ = -1;
  int to_complete_;  // tiles, of all groups
};

}  // namespace warproll::stream_linear_detail
