// What the roles of a streaming CTA agree on: places in a ring of stages, and a warp's arrival at an
// mbarrier. Internal to kernels/*.cu.
#pragma once

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/ptx.cuh"

namespace warproll {

// A warp arrives by one lane, after __syncwarp(). compute-sanitizer's racecheck does not follow
// __syncwarp(): for it, -DWARPROLL_RACECHECK makes every lane arrive, which is slower.
#ifdef WARPROLL_RACECHECK
inline constexpr int kWarpArrivals = 32;
#else
inline constexpr int kWarpArrivals = 1;
#endif
__device__ __forceinline__ void arrive_with_warp(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 < kWarpArrivals) ptx::mbarrier_arrive(barrier);
}

// A stage back to the copy engine, whose next bytes overwrite it. An arrival alone does not wait for loads
// of the warp that are on their way, and the copy engine does not queue behind them: with the load pipe
// full, scales were read that belonged to the next record (docs/decisions.md 87).
__device__ __forceinline__ void release_stage(uint32_t barrier) {
  ptx::fence_async_proxy();
  arrive_with_warp(barrier);
}
// The same where other CTAs of the cluster write: lane i tells barrier_of(i), for lanes 1 .. count - 1.
template <class BarrierOf>
__device__ __forceinline__ void release_to_cluster(int count, const BarrierOf& barrier_of) {
  ptx::fence_async_proxy();
  __syncwarp();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane > 0 && lane < count) ptx::arrive_in_cluster(barrier_of(lane));
}

// A place in a ring and how often it went round: waiting for `full` takes parity, for `empty` the
// other one (a fresh ring is empty).
struct RingPlace {
  int index = 0;
  uint32_t parity = 0;
  int size;

  __device__ void advance() {
    if (++index == size) {
      index = 0;
      parity ^= 1;
    }
  }
};

}  // namespace warproll
