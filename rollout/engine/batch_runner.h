// BatchRunner: turns scheduled chunks into one forward pass and its logits into tokens.
// Keeps its arrays between steps. Thread: the engine's only.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/sampling.h"
#include "rollout/engine/backend.h"
#include "rollout/engine/scheduler.h"

namespace warproll {

class BatchRunner {
 public:
  BatchRunner(const ModelConfig& config, int32_t block_tokens, ModelBackend backend);

  // All chunks are under the same weights (W1). Records routes where asked for. Gives one token for
  // each chunk that reaches its sequence's end, in order; token_id -1 where the logits were no
  // numbers. The sequences' num_computed and tokens stay as they are.
  std::span<const SampledToken> run(std::span<const ScheduledChunk> chunks);

  // The same in two halves, for chunks of one token that all reach their sequence's end; row i is
  // chunk i. The sequences may be gone when the tokens come.
  [[nodiscard]] bool can_launch() const { return static_cast<bool>(backend_.launch); }
  void launch(std::span<const ScheduledChunk> chunks);
  std::span<const SampledToken> collect(size_t num_rows);
  // Of the step collected last: the routes of its row's token, at position num_computed.
  void record_route(Sequence& sequence, size_t row);

  [[nodiscard]] int32_t route_ids_per_token() const { return route_ids_per_token_; }

 private:
  ForwardBatch batch_of(std::span<const ScheduledChunk> chunks);
  [[nodiscard]] bool want_routes(std::span<const ScheduledChunk> chunks) const;
  void pack(std::span<const ScheduledChunk> chunks);
  void record_routes(std::span<const ScheduledChunk> chunks);
  void plan_samples(std::span<const ScheduledChunk> chunks);
  void sample_on_cpu();

  const int32_t vocab_size_;
  const int32_t route_ids_per_token_;  // L * K
  const int32_t block_tokens_;
  const ModelBackend backend_;
  std::vector<int32_t> token_ids_, positions_, slot_mapping_, cu_seqlens_q_, context_lens_,
      block_table_, logits_rows_;
  int32_t blocks_per_sequence_ = 0;
  ForwardOutput output_;
  std::vector<RowSampling> rows_;
  std::vector<SamplingRow> cpu_rows_;
  std::vector<SampledToken> sampled_;
};

}  // namespace warproll
