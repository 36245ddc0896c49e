// score_tokens: log-probabilities of given tokens under one weight set, by a clean forward pass in
// a KV cache of its own: `generate --echo-logprobs`, and the check of what the engine reported.
// Thread: any; uses OpenMP inside.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sampling.h"
#include "protocol/records.h"
#include "protocol/status.h"
#include "rollout/engine/backend.h"
#include "rollout/model/weights.h"

namespace warproll {

// scores[i] is of token_ids[first + i] given all tokens before it, 1 <= first <= T. `sampling` gives
// temperature, top_k, top_p and min_p: logprob is under that distribution (-inf outside its
// support), raw_logprob under the model.
// kInvalidArgument: no tokens, ids out of range, more tokens than the model has positions.
Result<std::vector<SampledToken>> score_tokens(const WeightSet& weights, const ModelRunner& runner,
                                               std::span<const int32_t> token_ids, int32_t first,
                                               const SamplingParams& sampling);

}  // namespace warproll
