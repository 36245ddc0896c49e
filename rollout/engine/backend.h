// ModelBackend: the two things the engine asks of whatever runs the model. The engine itself sees
// blocks, tokens and logits only, so its scheduling is tested with a small fake.
// Thread: called by the engine's one thread only.
#pragma once

#include <cstdint>
#include <functional>

#include "rollout/model/forward.h"
#include "rollout/model/weights.h"

namespace warproll {

struct ModelBackend {
  // One batch under one weight set; a token's bits depend on its own sequence only.
  std::function<void(const ForwardBatch&, const WeightSet&, ForwardOutput&)> forward;
  std::function<void(int32_t from_block, int32_t to_block)> copy_block;  // copy on write
};

// forward() on the CPU with a KvCache of its own, which lives as long as the backend's copies.
// Throws std::bad_alloc.
ModelBackend make_cpu_backend(const ModelConfig& config, int32_t num_blocks, int32_t block_tokens,
                              ActivationDtype activations);

}  // namespace warproll
