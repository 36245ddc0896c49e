// step_exchange: how a step that is one CUDA graph gets its inputs out of page-locked memory and gives its
// results back, so that the host makes one driver call a step. A graph's parameters are fixed, yet two
// steps are under way at a time; each has one of two slots of page-locked memory, and the device counts
// the steps itself: step n has slot n % 2.
//
//   copy_slot   from or to the slot of the step that runs
//   end_step    the last of a step: small results to its slot, then n + 1 to done[n % 2], then counts
//
// Who reads n + 1 there with acquire sees all results of the step, and may write the slot's inputs anew.
// Steps run one behind the other on a stream; each has one end_step. Both kernels start when all before
// them has ended, and may be captured in a graph.
// Thread: any, one stream. Errors: std::invalid_argument, CudaError.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"

namespace warproll {

inline constexpr uint64_t kStepSlots = 2;

struct SlotCopyParams {
  const uint64_t* step = nullptr;   // device: n
  const std::byte* from = nullptr;  // 16-byte aligned, as `to`; of slot 0 where there are slots
  std::byte* to = nullptr;
  uint64_t from_stride_bytes = 0;  // from slot 0 to slot 1, multiple of 16; 0: there are no slots
  uint64_t to_stride_bytes = 0;
  uint64_t bytes = 0;  // multiple of 4; 0 is a no-op
};

// A cache line each: the host reads one while the device writes the other.
struct alignas(128) StepDone {
  uint64_t number = 0;  // of steps that have ended when this was the last one; 0: none
};

struct EndStepParams {
  uint64_t* step = nullptr;  // device: n, then n + 1
  SlotCopyParams results;    // a few KiB: one CTA copies them
  StepDone* done = nullptr;  // [kStepSlots], page-locked
};

void copy_slot(const SlotCopyParams& params, cudaStream_t stream);
void end_step(const EndStepParams& params, cudaStream_t stream);
// Everything in host memory.
void copy_slot_cpu(const SlotCopyParams& params);
void end_step_cpu(const EndStepParams& params);
void check_slot_copy(const SlotCopyParams& params);  // throws what the others throw

}  // namespace warproll
