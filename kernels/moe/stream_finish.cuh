// The finishing role of expert_stream.cuh. Internal to kernels/moe/*.cu.
#pragma once

#include "kernels/moe/stream_shared.cuh"

namespace warproll::moe {

// The sums of a slot: each of its records and token tiles over the eight warps.
template <class Shape, int kTokenTiles, int kMax, class Op>
__device__ __forceinline__ void finish_slot(const float4* sums, int first_tile,
                                            const int (&pairs)[kMax][2],
                                            const float (&scales)[kMax][2], const Op& op) {
#pragma unroll
  for (int t = 0; t < Shape::group(kTokenTiles); ++t) {
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i, sums += 32) {
      float4 sum = sums[0];
#pragma unroll
      for (int w = 1; w < kMultiplyWarps; ++w) {
        const float4 v = sums[w * Shape::kSlotUnits * 32];
        sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
      }
      if (pairs[i][0] >= 0) op.store(pairs[i][0], scales[i][0], first_tile + t, sum.x, sum.z);
      if (pairs[i][1] >= 0) op.store(pairs[i][1], scales[i][1], first_tile + t, sum.y, sum.w);
    }
  }
}

// One warp. Op: kTerms, term_stride()                        terms of a value, granules between them
//               const uint4* row(int pair)                   the pair's activations, in tile order
//               void wait_for_rows()                         returns once they can be read
//               float scale(int pair)                        what store() wants to know of a pair
//               void store(int pair, float scale, int tile, float low, float high)
//                                                            rows g and g + 8 of the tile
template <class Shape, class Op>
__device__ void finish_records(const StreamParams& p, const StreamShared<Shape>& shared,
                               const Op& op) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  RingPlace slot{.size = kSlots};
  int block = -1, count = 0;
  constexpr int kMax = Shape::kTokenTiles > 2 ? Shape::kTokenTiles : 2;
  int pairs[kMax][2];  // of this lane's columns, -1: none
  float scales[kMax][2];
  for (;;) {
    ptx::mbarrier_wait(shared.slot_full(slot.index), slot.parity);
    const StageHeader header = shared.slot_header(slot.index);
    if (header.block < 0) return;
    if (header.block != block) {
      block = header.block;
      const ExpertBlock b = shared.blocks[block];
      count = b.count;
#pragma unroll
      for (int i = 0; i < kMax; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int column = i * 8 + lane % 4 * 2 + j;
          pairs[i][j] = column < count ? p.lists.pairs[b.first + column] : -1;
          scales[i][j] = column < count ? op.scale(pairs[i][j]) : 0.0f;
        }
      }
    }
    const float4* sums = shared.slots + slot.index * Shape::kSlotFloat4s + lane;
    if (Shape::kTokenTiles == 1 || count <= 8) {
      finish_slot<Shape, 1>(sums, header.tile, pairs, scales, op);
    } else if (Shape::kTokenTiles == 2 || count <= 16) {
      finish_slot<Shape, 2>(sums, header.tile, pairs, scales, op);
    } else {
      finish_slot<Shape, Shape::kTokenTiles>(sums, header.tile, pairs, scales, op);
    }
    arrive_with_warp(shared.slot_empty(slot.index));
    slot.advance();
  }
}

}  // namespace warproll::moe
