// From what was generated to the record that is sealed. Everything of a Trajectory but what the log
// fills in (producer, epoch, seq, trajectory_id, sealed_ns).
// Thread: pure functions. Errors: none; the log validates.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "protocol/records.h"
#include "rollout/collector/prompt_encoder.h"
#include "rollout/token_generator.h"

namespace warproll {

// What every trajectory says about who made it.
struct ModelIdentity {
  std::string model;
  std::string activation_dtype = "f32";
  Digest tokenizer_digest{};
  std::string engine_version;
};

// A task as held by the collector, shared by its samples.
struct HeldTask {
  Task task;  // sample_indices empty
  EncodedPrompt prompt;
  std::shared_ptr<const std::vector<int32_t>> prompt_ids;
  int64_t received_ns = 0;         // Unix time
  int64_t deadline_steady_ns = 0;  // 0 = none
};

// Prompt and response; loss_mask 1 on every sampled token, also of an aborted sample, whose tokens
// are as good as any. With kError nothing is trainable: the tokens stay for people to look at, mask
// and logprobs are 0.
Trajectory build_trajectory(const HeldTask& held, int32_t sample_index,
                            const GeneratedSample& sample, const ModelIdentity& identity);

// A record for a sample that cannot be recorded as it is (an engine's NaN, say): the prompt alone,
// kError, and the reason.
Trajectory build_failure(const HeldTask& held, int32_t sample_index, const std::string& error_type,
                         const std::string& error_message, const ModelIdentity& identity);

}  // namespace warproll
