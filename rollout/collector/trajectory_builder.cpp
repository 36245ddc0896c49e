#include "rollout/collector/trajectory_builder.h"

#include <algorithm>

namespace warproll {
namespace {

Trajectory common(const HeldTask& held, int32_t sample_index, const ModelIdentity& identity) {
  Trajectory trajectory;
  const Task& task = held.task;
  trajectory.task_id = task.task_id;
  trajectory.group_id = task.group_id.empty() ? task.task_id : task.group_id;
  trajectory.sample_index = sample_index;
  trajectory.token_ids = *held.prompt_ids;
  trajectory.prompt_len = static_cast<int32_t>(trajectory.token_ids.size());
  trajectory.role_spans = held.prompt.role_spans;
  trajectory.sampling = task.sampling;
  trajectory.in_flight = task.in_flight;
  trajectory.metadata = task.metadata;
  trajectory.timings.task_received_ns = held.received_ns;
  trajectory.model = identity.model;
  trajectory.activation_dtype = identity.activation_dtype;
  trajectory.tokenizer_digest = identity.tokenizer_digest;
  trajectory.engine_version = identity.engine_version;
  return trajectory;
}

// Zeros for the prompt, then the values; all zeros when nothing may be trained on.
std::vector<float> after_prompt(size_t prompt_len, const std::vector<float>& values,
                                bool trainable) {
  std::vector<float> all(prompt_len, 0.0f);
  if (trainable) {
    all.insert(all.end(), values.begin(), values.end());
  } else {
    all.resize(prompt_len + values.size(), 0.0f);
  }
  return all;
}

std::vector<VersionRun> runs_of(const std::vector<uint64_t>& versions, int32_t start) {
  std::vector<VersionRun> runs;
  for (size_t i = 0; i < versions.size(); ++i) {
    if (i > 0 && versions[i] == versions[i - 1]) continue;
    runs.push_back({start + static_cast<int32_t>(i), versions[i]});
  }
  return runs;
}

// The response belongs to the assistant: its generation prompt's span goes on, or a new one begins.
void extend_roles(Trajectory& trajectory) {
  const auto total = static_cast<int32_t>(trajectory.token_ids.size());
  auto& spans = trajectory.role_spans;
  if (total == trajectory.prompt_len) return;
  if (!spans.empty() && spans.back().role == Role::kAssistant &&
      spans.back().end == trajectory.prompt_len) {
    spans.back().end = total;
  } else {
    spans.push_back({trajectory.prompt_len, total, Role::kAssistant});
  }
}

}  // namespace

Trajectory build_trajectory(const HeldTask& held, int32_t sample_index,
                            const GeneratedSample& sample, const ModelIdentity& identity) {
  Trajectory trajectory = common(held, sample_index, identity);
  const size_t prompt_len = trajectory.token_ids.size();
  const bool trainable = sample.finish_reason != FinishReason::kError;
  trajectory.token_ids.insert(trajectory.token_ids.end(), sample.token_ids.begin(),
                              sample.token_ids.end());
  trajectory.loss_mask.assign(prompt_len, 0);
  trajectory.loss_mask.resize(prompt_len + sample.token_ids.size(), trainable ? 1 : 0);
  trajectory.logprobs = after_prompt(prompt_len, sample.logprobs, trainable);
  trajectory.raw_logprobs = after_prompt(prompt_len, sample.raw_logprobs, trainable);
  trajectory.support_logmass = after_prompt(prompt_len, sample.support_logmass, trainable);
  trajectory.version_runs = runs_of(sample.weight_versions, trajectory.prompt_len);
  trajectory.version_digests = sample.version_digests;
  trajectory.events = sample.events;
  trajectory.routed_experts = sample.routed_experts;
  extend_roles(trajectory);
  trajectory.finish_reason = sample.finish_reason;
  trajectory.text = sample.text;
  trajectory.error_type = sample.error_type;
  trajectory.error_message = sample.error_message;
  const bool ended_early =
      sample.finish_reason == FinishReason::kAbort || sample.finish_reason == FinishReason::kError;
  if (ended_early && trajectory.error_type.empty()) trajectory.error_type = "unspecified";
  trajectory.timings.admitted_ns = sample.admitted_ns;
  trajectory.timings.first_token_ns = sample.first_token_ns;
  return trajectory;
}

Trajectory build_failure(const HeldTask& held, int32_t sample_index, const std::string& error_type,
                         const std::string& error_message, const ModelIdentity& identity) {
  Trajectory trajectory = common(held, sample_index, identity);
  const size_t prompt_len = trajectory.token_ids.size();
  trajectory.loss_mask.assign(prompt_len, 0);
  trajectory.logprobs.assign(prompt_len, 0.0f);
  trajectory.raw_logprobs.assign(prompt_len, 0.0f);
  trajectory.support_logmass.assign(prompt_len, 0.0f);
  trajectory.finish_reason = FinishReason::kError;
  trajectory.error_type = error_type;
  trajectory.error_message = error_message;
  return trajectory;
}

}  // namespace warproll
