#include "rollout/engine/backend.h"

#include <memory>

namespace warproll {

ModelBackend make_cpu_backend(const ModelConfig& config, int32_t num_blocks, int32_t block_tokens,
                              ActivationDtype activations) {
  auto kv = std::make_shared<KvCache>(config, num_blocks, block_tokens, activations);
  ModelBackend backend;
  backend.forward = [kv, activations](const ForwardBatch& batch, const WeightSet& weights,
                                      ForwardOutput& out) {
    forward(batch, weights.config, weights.weights, activations, *kv, out);
  };
  backend.copy_block = [kv](int32_t from_block, int32_t to_block) {
    kv->copy_block(from_block, to_block);
  };
  return backend;
}

BackendFactory cpu_backend_factory(ActivationDtype activations) {
  return [activations](const ModelConfig& config, const BackendSizes& sizes) {
    return make_cpu_backend(config, sizes.num_blocks, sizes.block_tokens, activations);
  };
}

}  // namespace warproll
