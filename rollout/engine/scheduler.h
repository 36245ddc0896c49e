// Scheduler: which tokens of which sequences the next step forwards, and in which KV blocks.
//
// A step: every decoding sequence gets its one token; then prefilling and recomputing ones get
// chunks, oldest admission first, as the token budget allows; then waiting ones are admitted, first
// preempted ones, then in order of arrival, while their whole known length fits beside what the
// running ones still need. When a running sequence needs a block and none is free, first cached
// prompts are evicted, then the latest admitted sequence is preempted: its KV is dropped and
// computed anew later, what it has sampled stays. So the oldest sequence always gets on.
// A block with several owners is copied before it is written.
// Thread: the engine's only. Lifetime: sequences are the caller's and outlive their stay here.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "rollout/engine/block_manager.h"
#include "rollout/engine/engine_config.h"
#include "rollout/engine/prompt_cache.h"
#include "rollout/engine/sequence.h"

namespace warproll {

// Positions [num_computed, num_computed + num_tokens) of a sequence.
struct ScheduledChunk {
  Sequence* sequence = nullptr;
  int32_t num_tokens = 0;
  // Instead: the one token at position size(), which the step under way is about to sample.
  bool ahead = false;

  [[nodiscard]] int32_t begin() const { return ahead ? sequence->size() : sequence->num_computed; }
  [[nodiscard]] int32_t end() const { return begin() + num_tokens; }
  // Then the step gives the token at position end().
  [[nodiscard]] bool reaches_end() const { return ahead || end() == sequence->size(); }
};

class Scheduler {
 public:
  using CopyBlock = std::function<void(int32_t from_block, int32_t to_block)>;
  Scheduler(const EngineConfig& config, CopyBlock copy_block);

  void add(Sequence& sequence);
  void remove(Sequence& sequence);  // ended: its blocks are given back
  // The next step's chunks; sequences that start do so under `current`. Empty = nothing to do.
  // Valid until the next call of plan() or remove().
  const std::vector<ScheduledChunk>& plan(const WeightSetPtr& current);
  // Room for the KV of the token behind the last one known, from free blocks alone: nobody is evicted
  // or preempted for it. False: there is none.
  bool reserve_next(Sequence& sequence);
  // A chunk's KV is written (and its routes are recorded).
  void computed(Sequence& sequence, int32_t num_tokens, int32_t route_ids_per_token);
  // KV to be computed from position 0 again; the sequence keeps its turn.
  void drop_kv(Sequence& sequence);
  // KV dropped and back to waiting; a sequence that has sampled gets an event.
  void preempt(Sequence& sequence);
  void clear_prompts() { prompts_.clear(); }  // the current weights changed

  [[nodiscard]] const std::vector<Sequence*>& running() const { return running_; }
  [[nodiscard]] int32_t num_waiting() const;
  [[nodiscard]] int32_t num_free_blocks() const { return blocks_.num_free(); }
  [[nodiscard]] uint64_t num_preemptions() const { return num_preemptions_; }
  [[nodiscard]] uint64_t num_prompt_hits() const { return prompts_.num_hits(); }

 private:
  void plan_decodes();
  void plan_prefills(const WeightSetPtr& current);
  void admit(const WeightSetPtr& current);
  [[nodiscard]] bool fits(const Sequence& sequence, int32_t promised_blocks);
  bool start(Sequence& sequence, const WeightSetPtr& current);
  void schedule(Sequence& sequence, int32_t num_tokens);
  bool make_room(Sequence& sequence, int32_t num_tokens);
  bool make_writable(Sequence& sequence, size_t block_index);
  bool reclaim(const Sequence& sequence);
  [[nodiscard]] int32_t blocks_for(int32_t num_tokens) const;
  void unplan(const Sequence& sequence);

  const EngineConfig config_;
  const CopyBlock copy_block_;
  BlockManager blocks_;
  PromptCache prompts_;
  std::deque<Sequence*> waiting_;     // never admitted, in order of arrival
  std::deque<Sequence*> preempted_;   // by admission_order
  std::vector<Sequence*> running_;    // by admission_order
  std::vector<ScheduledChunk> plan_;  // of the step being made
  int32_t budget_tokens_ = 0;         // left in that step
  uint64_t num_admissions_ = 0;
  uint64_t num_preemptions_ = 0;
};

}  // namespace warproll
