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

ModelRunner cpu_runner(ActivationDtype activations) {
  return {"cpu", activations, sizeof(float),
          [activations](const ModelConfig& config, const BackendSizes& sizes) {
            return make_cpu_backend(config, sizes.num_blocks, sizes.block_tokens, activations);
          }};
}

BackendSizes backend_sizes(const EngineConfig& config, const ModelConfig& model) {
  BackendSizes sizes;
  sizes.num_blocks = config.num_blocks;
  sizes.block_tokens = config.block_tokens;
  sizes.max_batch_tokens = config.max_batch_tokens;
  sizes.max_sequences = config.max_running_sequences;
  sizes.max_context_tokens = config.context_tokens(model);
  return sizes;
}

}  // namespace warproll
