// What the engine refuses at submit, with the value got and the value wanted. Thread: pure functions.
#pragma once

#include "protocol/status.h"
#include "rollout/engine/engine_config.h"
#include "rollout/model/model_config.h"
#include "rollout/token_generator.h"

namespace warproll {

// Empty or too long prompts, ids out of range, bad sampling parameters, stop strings without a
// tokenizer, requests whose KV could never fit into all blocks (kResourceExhausted).
Status check_request(const SampleRequest& request, const EngineConfig& config,
                     const ModelConfig& model, bool has_tokenizer);

// A WeightSet of another shape cannot take over from the one the KV cache was made for.
Status check_same_shape(const ModelConfig& got, const ModelConfig& wanted);

}  // namespace warproll
