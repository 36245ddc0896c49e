// Clusters of CTAs and their distributed shared memory (sm_90), one function an instruction, as
// ptx.cuh. Internal to kernels/*.cu.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace warproll::ptx {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The two halves of a barrier among all threads of a cluster. Between them other work may be done. It
// orders no memory but what fence_mbarrier_init() did: for "the barriers stand". Not for "nobody leaves yet":
// what was sent to another CTA before may still be under way behind it, and a store or an arrival
// that finds its CTA gone ends the process (docs/decisions.md 93).
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Where CTA `rank` of the cluster has what this CTA has at `shared`.
__device__ __forceinline__ uint32_t address_in_cluster(uint32_t shared, uint32_t rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}

// Sixteen, eight or four bytes to another CTA's shared memory; counts on a barrier there. Both addresses are
// address_in_cluster's.
__device__ __forceinline__ void store_to_cluster(uint32_t to, float4 v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_to_cluster(uint32_t to, float2 v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::
          "r"(to),
      "f"(v.x), "f"(v.y), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_to_cluster(uint32_t to, float v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to),
      "f"(v), "r"(barrier)
      : "memory");
}

// For what was read before: no wider release than the CTA's, which would wait for all stores to global
// memory under way.
__device__ __forceinline__ void arrive_in_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

}  // namespace warproll::ptx
