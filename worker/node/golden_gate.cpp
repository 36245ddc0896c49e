#include "worker/node/golden_gate.h"

#include <cmath>

#include "rollout/engine/score.h"
#include "worker/node/serving_model.h"

namespace warproll {
namespace {

Status check_prompt(const WeightSet& weights, const GoldenPrompt& prompt, float max_error,
                    const std::string& name, const ModelRunner& runner) {
  std::vector<int32_t> tokens = prompt.prompt_ids;
  tokens.insert(tokens.end(), prompt.expected_ids.begin(), prompt.expected_ids.end());
  SamplingParams greedy;
  greedy.temperature = 0;
  WARPROLL_TRY_ASSIGN(scores, score_tokens(weights, runner, tokens,
                                           static_cast<int32_t>(prompt.prompt_ids.size()), greedy));
  for (size_t i = 0; i < prompt.expected_ids.size(); ++i) {
    const std::string where = name + " token " + std::to_string(i);
    // Under greedy sampling the support is the arg max alone: -inf means another token won.
    if (std::isinf(scores[i].logprob)) {
      return data_loss(where + ": the new weights do not choose id " +
                       std::to_string(prompt.expected_ids[i]));
    }
    const float error = std::abs(scores[i].raw_logprob - prompt.logprobs[i]);
    if (!(error <= max_error)) {
      return data_loss(where + ": logprob " + std::to_string(scores[i].raw_logprob) + ", wanted " +
                       std::to_string(prompt.logprobs[i]) + " within " + std::to_string(max_error));
    }
  }
  return ok_status();
}

}  // namespace

Status run_golden_gate(const StagedWeightsPtr& staged, const GoldenGate& gate,
                       const ModelDevice& device) {
  WARPROLL_TRY_ASSIGN(weights, make_weight_set(staged, device));
  for (size_t i = 0; i < gate.prompts.size(); ++i) {
    WARPROLL_TRY(check_prompt(*weights, gate.prompts[i], gate.max_abs_logprob_error,
                              "golden prompt " + std::to_string(i), device.runner));
  }
  return ok_status();
}

}  // namespace warproll
