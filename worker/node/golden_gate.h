// The golden-prompt gate of a manifest (weights_sync/manifest.h), run on the engine's model code:
// new weights must continue the given prompts greedily with the given ids, at the given logprobs.
// Thread: the update's work thread; uses an engine of its own, the serving one is not touched.
#pragma once

#include "protocol/status.h"
#include "weights_sync/manifest.h"
#include "weights_sync/weight_arenas.h"
#include "worker/node/model_device.h"

namespace warproll {

// kDataLoss names the prompt, the position, the value got and the value wanted.
Status run_golden_gate(const StagedWeightsPtr& weights, const GoldenGate& gate,
                       const ModelDevice& device);

}  // namespace warproll
