// cluster_linear: the multiplying warps. Internal to kernels/step/cluster_linear*.
#pragma once

#include "kernels/step/cluster_linear_activations.cuh"
#include "kernels/step/vectors.cuh"

namespace warproll::cluster_linear_detail {

template <class S>
class Multiplier {
 public:
  __device__ Multiplier(const Params& p, const Shared<S>& shared, int warp)
      : p_(p),
        shared_(shared),
        group_(warp / kGroupWarps),
        in_group_(warp % kGroupWarps),
        stage_(group_ * S::kPanels % S::kStages) {}

  __device__ __forceinline__ void run() {
    const int step = tile_step<S>();
    for (int first = first_tile<S>() + group_ * S::kGroupTiles; first < p_.weight.num_tiles;
         first += step) {
      const int tile = first + in_group_;
      const bool present = in_group_ < S::kGroupTiles && tile < p_.weight.num_tiles;
      uint32_t row_scales[2] = {};  // BF16, of rows g and g + 8
      if (present) {
        const auto* scales = reinterpret_cast<const uint16_t*>(p_.weight.row_scales()) +
                             int64_t{tile} * kTileRows + lane_ / 4;
        row_scales[0] = scales[0], row_scales[1] = scales[8];
      }
      float sums[S::kSums];
      multiply(sums);
      if (!present) continue;
      float own[S::kOwn];
      exchange(sums, own, tile + step < p_.weight.num_tiles);
      store(own, tile, row_scales);
      parity_ ^= 1;
    }
  }

 private:
  using Vector = typename S::Vector;
  static constexpr int kFloats = static_cast<int>(sizeof(Vector) / 4);

  // 64 rows times all tokens. While the tensor core works on a panel, the next is read.
  __device__ __forceinline__ void multiply(float (&sums)[S::kSums]) {
    constexpr int kBuffers = 2;
    uint32_t w[kBuffers][2][8];
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    read_panel(0, w[0]);
#pragma unroll
    for (int panel = 0; panel < S::kPanels; ++panel) {
      const uint32_t x = ptx::shared_address(shared_.x) + panel * S::kPanelBytes;
      pin_operands(w[panel % kBuffers]);
      moe::fence_products();
      moe::multiply<0>(sums, w[panel % kBuffers][0], x);
      moe::multiply<1>(sums, w[panel % kBuffers][1], x);
      moe::commit_products();
      moe::wait_products<kBuffers - 1>();
      if (panel + 1 < S::kPanels) read_panel(panel + 1, w[(panel + 1) % kBuffers]);
    }
    moe::wait_products<0>();
    moe::pin(sums);
    full_parity_ ^= 1;
    stage_ = (stage_ + (S::kGroups - 1) * S::kPanels) % S::kStages;
  }

  static __device__ __forceinline__ void pin_operands(uint32_t (&w)[2][8]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) asm volatile("" : "+r"(w[i / 8][i % 8])::"memory");
  }

  __device__ __forceinline__ void read_panel(int panel, uint32_t (&w)[2][8]) {
    ptx::mbarrier_wait(shared_.full(group_, panel), full_parity_);
    // A warp without a tile multiplies what another has.
    const std::byte* tile = shared_.ring + stage_ * S::kStageBytes +
                            min(in_group_, S::kGroupTiles - 1) * kTileBytes + lane_ * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 v = *reinterpret_cast<const uint4*>(tile + i * (kBlockBytes / 2));
      uint32_t* to = w[i / 2] + i % 2 * 4;
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    }
    release_stage(shared_.empty(stage_));
    if (++stage_ == S::kStages) stage_ = 0;
  }

  // own: the sums over all columns of this CTA's tokens.
  __device__ __forceinline__ void exchange(float (&sums)[S::kSums], float (&own)[S::kOwn],
                                           bool more) const {
    const int tile = group_ * S::kGroupTiles + in_group_;
    Vector* const received = shared_.received + tile * (S::kSplit - 1) * S::kVectors * 32 + lane_;
#pragma unroll
    for (int i = 0; i < S::kSums; i += 4) {
      const float2 scale = *reinterpret_cast<const float2*>(shared_.scales + 2 * i + lane_ % 4 * 2);
      sums[i] *= scale.x, sums[i + 2] *= scale.x;
      sums[i + 1] *= scale.y, sums[i + 3] *= scale.y;
    }
    if (other_finishers<S>(p_.num_tokens) > 0)
      ptx::mbarrier_wait(shared_.may_send(tile), parity_ ^ 1);
#pragma unroll
    for (int r = 0; r < S::kSplit; ++r) {
      const float* from = sums + r * S::kOwn;
      if (r == rank_) {
#pragma unroll
        for (int i = 0; i < S::kOwn; ++i) own[i] = from[i];
      } else if (finishes<S>(r, p_.num_tokens)) {
        send(from, received + ((r ^ rank_) - 1) * S::kVectors * 32, shared_.arrived(tile), r);
      }
    }
    if (finishes<S>(rank_, p_.num_tokens)) {
      const uint32_t arrived = shared_.arrived(tile);
      if (lane_ == 0) {
        ptx::mbarrier_arrive_expect(arrived,
                                    (S::kSplit - 1) * S::kVectors * 32 * uint32_t{sizeof(Vector)});
      }
      ptx::mbarrier_wait(arrived, parity_);
#pragma unroll
      for (int i = 0; i < S::kVectors; ++i) add_in_order(received + i * 32, own + i * kFloats);
      if (more) {  // after the last they may have left
        release_to_cluster(S::kSplit, [&](int lane) {
          return ptx::address_in_cluster(shared_.may_send(tile), rank_ ^ lane);
        });
      }
    }
  }

  static __device__ __forceinline__ void send(const float* from, const Vector* to, uint32_t barrier,
                                              int rank) {
    const uint32_t there = ptx::address_in_cluster(ptx::shared_address(to), rank);
    const uint32_t barrier_there = ptx::address_in_cluster(barrier, rank);
#pragma unroll
    for (int i = 0; i < S::kVectors; ++i) {
      const float* v = from + i * kFloats;
      if constexpr (kFloats == 4) {
        ptx::store_to_cluster(there + i * 32 * sizeof(Vector), make_float4(v[0], v[1], v[2], v[3]),
                              barrier_there);
      } else {
        ptx::store_to_cluster(there + i * 32 * sizeof(Vector), make_float2(v[0], v[1]),
                              barrier_there);
      }
    }
  }

  // The CTAs' in the order of their columns.
  __device__ __forceinline__ void add_in_order(const Vector* received, float* own) const {
    float total[kFloats] = {};
#pragma unroll
    for (int r = 0; r < S::kSplit; ++r) {
      float part[kFloats];
      if (r == rank_) {
#pragma unroll
        for (int i = 0; i < kFloats; ++i) part[i] = own[i];
      } else {
        const Vector v = received[((r ^ rank_) - 1) * S::kVectors * 32];
        part[0] = v.x, part[1] = v.y;
        if constexpr (kFloats == 4) part[2] = v.z, part[3] = v.w;
      }
#pragma unroll
      for (int i = 0; i < kFloats; ++i) total[i] = r == 0 ? part[i] : total[i] + part[i];
    }
#pragma unroll
    for (int i = 0; i < kFloats; ++i) own[i] = total[i];
  }

  __device__ __forceinline__ void store(const float (&own)[S::kOwn], int tile,
                                        const uint32_t (&row_scales)[2]) const {
    const int64_t rows = int64_t{p_.weight.num_tiles} * kTileRows;
#pragma unroll
    for (int i = 0; i < S::kOwn; i += 2) {
      const int at = rank_ * S::kOwn + i, token = at / 4 * 8, half = at / 2 % 2;
      // A power of two: exact.
      const float scale = __uint_as_float((half == 0 ? row_scales[0] : row_scales[1]) << 16);
      const float low = own[i] * scale, high = own[i + 1] * scale;
      const int row = tile * kTileRows + half * 8;
      if (p_.y_f32 != nullptr) {
        float* y = p_.y_f32 + (token + lane_ % 4 * 2) * rows + row + lane_ / 4;
        if (token + lane_ % 4 * 2 < p_.num_tokens) y[0] = low;
        if (token + lane_ % 4 * 2 + 1 < p_.num_tokens) y[rows] = high;
      } else {  // a lane gets two rows of one token
        const uint32_t pair = transposed(step::bf16_pair(low, high));
        if (token + lane_ / 4 < p_.num_tokens) {
          *reinterpret_cast<uint32_t*>(p_.y + (token + lane_ / 4) * rows + row + lane_ % 4 * 2) =
              pair;
        }
      }
    }
  }
  static __device__ __forceinline__ uint32_t transposed(uint32_t pair) {
    uint32_t other;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(other) : "r"(pair));
    return other;
  }

  const Params& p_;
  const Shared<S>& shared_;
  const int lane_ = static_cast<int>(threadIdx.x) % 32;
  const int rank_ = static_cast<int>(ptx::cluster_rank());
  const int group_, in_group_;
  int stage_;
  uint32_t full_parity_ = 0, parity_ = 0;
};

}  // namespace warproll::cluster_linear_detail
