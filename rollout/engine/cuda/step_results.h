// StepResults: what steps give back to the host, in page-locked memory that the steps themselves write: two
// slots, for the two steps that are under way at most, and the device's count of steps by which step n
// finds slot n % 2 (kernels/step_exchange.h).
// Thread: one owner; enqueue() and step() any. Errors: CudaError, std::logic_error (step_signal.h).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/pinned_buffer.h"
#include "kernels/step_exchange.h"
#include "rollout/model/cuda/device_forward.h"

namespace warproll {

class StepResults {
 public:
  // route_ids: L * T * K of the largest step.
  StepResults(size_t max_logits, size_t route_ids);

  // On the device: the number of the step that runs, from 0 on.
  [[nodiscard]] const uint64_t* step() const { return step_.data(); }
  // The last of a step: its sampled tokens, its routes (num_route_ids; 0: not wanted), its number.
  // May be captured.
  void enqueue(const StepShape& shape, const StepOutputs& outputs, size_t num_route_ids,
               cudaStream_t stream) const;
  // Until step n, enqueued on `stream`, has ended; what follows is then its. No driver call, but for one
  // every 50 ms.
  void wait(uint64_t step, cudaStream_t stream) const;
  [[nodiscard]] std::span<SampledToken> sampled(uint64_t step) const;
  [[nodiscard]] std::span<int32_t> routes(uint64_t step) const;  // [L, T, K]

 private:
  size_t max_logits_, route_ids_;  // of a slot, rounded up to 16 bytes
  PinnedBuffer<SampledToken> sampled_;
  PinnedBuffer<int32_t> routes_;
  PinnedBuffer<StepDone> done_;  // [kStepSlots]
  DeviceBuffer<uint64_t> step_;
};

}  // namespace warproll
