// copy_slot: grid up to 32 CTAs, block 256 threads, a thread 16 bytes at a time. end_step: one CTA of 256
// threads: the results, and then the step's number.
#include "kernels/step_exchange.h"

#include <algorithm>

#include "kernels/cuda/launch.cuh"

namespace warproll {
namespace {

constexpr int kThreads = 256;
constexpr uint64_t kMostCtas = 32;  // more do not make PCIe faster
constexpr uint64_t kVectorBytes = sizeof(uint4);

// What a step's slot holds changes behind the caches' back: read with .cv.
__device__ void copy(const SlotCopyParams& p, uint64_t slot, uint64_t first, uint64_t step) {
  const std::byte* const from = p.from + slot * p.from_stride_bytes;
  std::byte* const to = p.to + slot * p.to_stride_bytes;
  const uint64_t vectors = p.bytes / kVectorBytes;
#pragma unroll 4
  for (uint64_t i = first; i < vectors; i += step) {
    reinterpret_cast<uint4*>(to)[i] = __ldcv(reinterpret_cast<const uint4*>(from) + i);
  }
  const uint64_t words = p.bytes / sizeof(uint32_t);
  for (uint64_t i = vectors * 4 + first; i < words; i += step) {
    reinterpret_cast<uint32_t*>(to)[i] = __ldcv(reinterpret_cast<const uint32_t*>(from) + i);
  }
}

__global__ void __launch_bounds__(kThreads) copy_slot_kernel(SlotCopyParams p) {
  copy(p, *p.step % kStepSlots, uint64_t{blockIdx.x} * kThreads + threadIdx.x,
       uint64_t{gridDim.x} * kThreads);
}

__device__ __forceinline__ void store_release_system(uint64_t* to, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

__global__ void __launch_bounds__(kThreads) end_step_kernel(EndStepParams p) {
  const uint64_t step = *p.step;
  const uint64_t slot = step % kStepSlots;
  copy(p.results, slot, threadIdx.x, kThreads);
  __syncthreads();  // all have read the number, all results are written
  if (threadIdx.x != 0) return;
  __threadfence_system();
  store_release_system(&p.done[slot].number, step + 1);
  *p.step = step + 1;
}

}  // namespace

// Neither launch is programmatic: what came before has ended, whoever enqueued it.
void copy_slot(const SlotCopyParams& p, cudaStream_t stream) {
  check_slot_copy(p);
  if (p.bytes == 0) return;
  const uint64_t ctas = (p.bytes + kThreads * kVectorBytes - 1) / (kThreads * kVectorBytes);
  LaunchConfig config(dim3(static_cast<unsigned>(std::min(ctas, kMostCtas))), kThreads, 0, stream);
  config.run(copy_slot_kernel, p);
}

void end_step(const EndStepParams& p, cudaStream_t stream) {
  check_slot_copy(p.results);
  LaunchConfig config(dim3(1), kThreads, 0, stream);
  config.run(end_step_kernel, p);
}

}  // namespace warproll
