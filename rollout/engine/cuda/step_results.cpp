#include "rollout/engine/cuda/step_results.h"

#include <algorithm>

#include "rollout/engine/step_signal.h"

namespace warproll {
namespace {

size_t in_fours(size_t count) { return (count + 3) / 4 * 4; }  // of 4 bytes or multiples of that

}  // namespace

StepResults::StepResults(size_t max_logits, size_t route_ids)
    : max_logits_(in_fours(max_logits)),
      route_ids_(in_fours(route_ids)),
      sampled_(max_logits_ * kStepSlots),
      routes_(route_ids_ * kStepSlots),
      done_(kStepSlots),
      step_(1) {
  std::ranges::fill(done_.span(), StepDone{});
  const uint64_t none = 0;
  step_.copy_from({&none, 1});
}

void StepResults::enqueue(const StepShape& shape, const StepOutputs& outputs, size_t num_route_ids,
                          cudaStream_t stream) const {
  copy_slot({.step = step_.data(),
             .from = reinterpret_cast<const std::byte*>(outputs.routes),
             .to = reinterpret_cast<std::byte*>(routes_.data()),
             .to_stride_bytes = route_ids_ * sizeof(int32_t),
             .bytes = num_route_ids * sizeof(int32_t)},
            stream);
  const auto rows = static_cast<size_t>(shape.sampled ? shape.num_logits : 0);
  end_step({.step = step_.data(),
            .results = {.step = step_.data(),
                        .from = reinterpret_cast<const std::byte*>(outputs.sampled),
                        .to = reinterpret_cast<std::byte*>(sampled_.data()),
                        .to_stride_bytes = max_logits_ * sizeof(SampledToken),
                        .bytes = rows * sizeof(SampledToken)},
            .done = done_.data()},
           stream);
}

void StepResults::wait(uint64_t step, cudaStream_t stream) const {
  wait_for_step(done_.data()[step % kStepSlots].number, step + 1, [stream] {
    const cudaError_t code = cudaStreamQuery(stream);
    if (code != cudaErrorNotReady) WARPROLL_CUDA_CHECK(code);
    return code == cudaSuccess;
  });
}

std::span<SampledToken> StepResults::sampled(uint64_t step) const {
  return sampled_.span().subspan(step % kStepSlots * max_logits_, max_logits_);
}

std::span<int32_t> StepResults::routes(uint64_t step) const {
  return routes_.span().subspan(step % kStepSlots * route_ids_, route_ids_);
}

}  // namespace warproll
