#include "rollout/model/cuda/device_forward.h"

#include <string>

#include "kernels/check.h"
#include "rollout/model/cuda/forward_step.h"

namespace warproll {

DeviceForward::DeviceForward(const ModelConfig& config, const DeviceForwardOptions& options)
    : config_(config), options_(options), space_(std::make_unique<Workspace>(config, options)) {}

DeviceForward::~DeviceForward() = default;

void DeviceForward::enqueue(const StepShape& shape, const StepInputs& inputs,
                            const DeviceModelWeights& weights, const DeviceKvCache& kv,
                            cudaStream_t stream) {
  const StepShape& most = options_.largest;
  check_argument(
      shape.num_tokens <= most.num_tokens && shape.num_sequences <= most.num_sequences &&
          shape.num_logits <= most.num_logits &&
          shape.blocks_per_sequence <= most.blocks_per_sequence &&
          (!shape.want_router_logits || options_.capture_router_logits),
      [&] {
        const auto text = [](const StepShape& s) {
          return std::to_string(s.num_tokens) + " tokens, " + std::to_string(s.num_sequences) +
                 " sequences of " + std::to_string(s.blocks_per_sequence) + " blocks, " +
                 std::to_string(s.num_logits) + " logits";
        };
        return "forward: a step of " + text(shape) + ", wanted at most " + text(most) +
               (shape.want_router_logits ? ", router logits only where made for them" : "");
      });
  if (shape.num_tokens > 0) Step(*this, shape, inputs, weights, kv, stream).run();
}

StepOutputs DeviceForward::outputs() const {
  return {space_->logits, space_->sampled, space_->topk_ids, space_->router_logits};
}

size_t DeviceForward::workspace_bytes(const ModelConfig& config,
                                      const DeviceForwardOptions& options) {
  return Workspace::bytes_of(config, options);
}

}  // namespace warproll
