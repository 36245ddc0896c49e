// EngineCore: the engine without a thread. Somebody calls step() again and again; everything else
// happens between two steps, so a weight swap is a pointer exchange and marks on sequences.
// A sample's bits do not depend on what else is in the engine: sampling is keyed by (seed,
// sample_index, position), and forward() gives a token's bits by its own sequence only.
//
// When weights flip, a sequence that has sampled something follows its policy:
//   keep       goes on with its old KV under the new weights                  event flip_keep
//   recompute  all its KV is computed anew under the new weights              event flip_recompute
//   abort      ends as kAbort, error_type "weights_changed", with what it has
//   pin        goes on under its old weights to its end; steps then run one pass for each version
// One that has sampled nothing starts over under the new weights (pin: if it has not started). A
// recompute pass under way starts over too, so it always runs wholly under one version; its event
// then tells the new one. keep during such a pass is that: a recompute under the new weights.
// On a backend that can launch and collect, steps of decodes alone overlap: the next is launched before
// the tokens of the one under way are known, unless something may change the batch. A sequence that such
// a token ends leaves a row for nothing behind. Weights and sequences change with nothing under way.
// The engine holds a WeightSet only as the current one and through sequences that run under it.
//
// Errors: submit() returns them. Logits that are not numbers end their sample as kError,
// "non_finite_logits". Exceptions (broken invariants, bad_alloc) pass through.
// Thread: one at a time, check() from any.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rollout/engine/backend.h"
#include "rollout/engine/batch_runner.h"
#include "rollout/engine/engine_config.h"
#include "rollout/engine/engine_stats.h"
#include "rollout/engine/scheduler.h"
#include "rollout/engine/sequence.h"
#include "rollout/token_generator.h"
#include "rollout/tokenizer/tokenizer.h"

namespace warproll {

struct EngineParts {
  EngineConfig config;
  ModelBackend backend;
  WeightSetPtr weights;                        // served from the start
  std::shared_ptr<const Tokenizer> tokenizer;  // null: no text, stop strings are refused
};

class EngineCore {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static Result<std::unique_ptr<EngineCore>> create(EngineParts parts);
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  // Would submit() take it? Everything but whether its request_id is live.
  [[nodiscard]] Status check(const SampleRequest& request) const;
  Status submit(SampleRequest request);
  // The sample ends as kAbort with this error_type. Unknown ids are ignored.
  void abort(uint64_t request_id, const std::string& error_type, const std::string& message);

  // One step: at most one forward pass for each weight version. `now` is for deadlines. False: there
  // was nothing to run.
  bool step(TimePoint now);
  // Finished samples, in finishing order.
  [[nodiscard]] std::vector<GeneratedSample> take_finished();

  // New sequences and flipping ones run under `weights` from the next step on. Weights of another
  // model shape are refused. Gives the number of sequences that had started.
  // `before_flip` is called first, with no step under way; not when the weights are refused.
  Result<int32_t> install_weights(WeightSetPtr weights,
                                  const std::function<void()>& before_flip = {});
  // Started sequences under weights that are not the current ones.
  [[nodiscard]] int32_t pinned_sequences() const;
  // They flip to the current weights now, as `fallback` (not pin) says. Gives their number.
  Result<int32_t> release_pins(InFlightPolicy fallback);

  // For regeneration and tests: makes the event happen to this started sequence now, before its next
  // token, with `weights` as the current ones from then on.
  Status script_event(uint64_t request_id, EventKind kind, WeightSetPtr weights);
  // Tokens known of a live sequence, prompt included; 0 = not live.
  [[nodiscard]] int32_t sequence_tokens(uint64_t request_id) const;

  [[nodiscard]] size_t num_live() const { return live_.size(); }
  [[nodiscard]] const WeightSetPtr& weights() const { return current_; }
  [[nodiscard]] EngineStats stats() const;

 private:
  explicit EngineCore(EngineParts parts);
  void expire(TimePoint now);
  // A row of a step that is under way. Its sequence may end, and another get its id, before it comes.
  struct RowUnderWay {
    uint64_t request_id = 0;
    uint64_t admission_order = 0;
    WeightSetPtr weights;  // which the device may read until the row comes
  };
  [[nodiscard]] bool step_under_way() const { return !under_way_.empty(); }
  [[nodiscard]] Sequence* sequence_of(const RowUnderWay& row) const;
  bool begin_step();
  void launch(std::span<const ScheduledChunk> chunks);
  void run_ahead(std::span<const RowUnderWay> rows);
  void collect(std::span<const RowUnderWay> rows);
  void settle();
  void run_chunks(std::span<const ScheduledChunk> chunks);
  // `num_tokens` more tokens have their KV; `token` is the one behind them, or null.
  void take_computed(Sequence& sequence, int32_t num_tokens, const SampledToken* token);
  // The sequence's next token came. Ended?
  std::optional<SampleEnd> take_token(Sequence& sequence, const SampledToken& token);
  Status switch_to(WeightSetPtr weights);
  void flip(Sequence& sequence, InFlightPolicy policy);
  void finish(uint64_t request_id, const SampleEnd& end);

  const EngineConfig config_;
  const ModelConfig model_;
  const int32_t context_tokens_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  WeightSetPtr current_;
  Scheduler scheduler_;
  BatchRunner runner_;
  std::map<uint64_t, std::unique_ptr<Sequence>> live_;  // by request_id
  std::vector<RowUnderWay> under_way_;                  // of the step launched last
  std::vector<GeneratedSample> finished_;
  EngineStats stats_;
};

}  // namespace warproll
