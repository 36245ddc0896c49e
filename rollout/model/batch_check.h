// check_batch: forward()'s callers promise shapes and ranges; here the promise is checked.
// Internal to rollout/model/*.cpp. Thread: pure function.
#pragma once

#include "rollout/model/forward.h"

namespace warproll {

// Throws std::invalid_argument with the values. Token ids are checked by the embedding.
void check_batch(const ForwardBatch& batch, const ModelConfig& config, const ModelWeights& weights,
                 ActivationDtype activations, const KvCache& kv);

}  // namespace warproll
