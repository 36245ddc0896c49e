// EngineConfig: the sizes of one engine. Units end the names. Thread: plain values.
#pragma once

#include <cstdint>

#include "protocol/status.h"
#include "rollout/model/model_config.h"

namespace warproll {

struct EngineConfig {
  int32_t max_batch_tokens = 512;      // tokens a step forwards, prefill and decode together
  int32_t prefill_chunk_tokens = 256;  // most tokens of one sequence in one step
  int32_t max_running_sequences = 64;  // sequences that hold KV blocks
  int32_t max_queued_requests = 1024;  // submitted and not yet polled; beyond: kUnavailable
  int32_t max_context_tokens = 0;      // prompt + response; 0 = max_position_embeddings
  int32_t block_tokens = 16;           // tokens of one KV block
  int32_t num_blocks = 1024;           // KV blocks in all
  bool share_prompts = true;           // the samples of a group share one prefilled prompt
  // The next step is launched before the tokens of the last are known, on backends that can. Off: a
  // step ends with its tokens taken, so that something can be made to happen before a given one.
  bool overlap_steps = true;

  // The context limit that holds for this model.
  [[nodiscard]] int32_t context_tokens(const ModelConfig& model) const;
};

// Every size in range and consistent with the others: the error names the key, the value got and
// the value wanted.
Status validate(const EngineConfig& config, const ModelConfig& model);

}  // namespace warproll
