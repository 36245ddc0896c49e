#include "rollout/engine/scheduler.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace warproll {
namespace {

void insert_by_admission(auto& sequences, Sequence& sequence) {
  const auto later = [&](const Sequence* other) {
    return other->admission_order > sequence.admission_order;
  };
  sequences.insert(std::find_if(sequences.begin(), sequences.end(), later), &sequence);
}

}  // namespace

Scheduler::Scheduler(const EngineConfig& config, CopyBlock copy_block)
    : config_(config),
      copy_block_(std::move(copy_block)),
      blocks_(config.num_blocks),
      prompts_(blocks_, config.block_tokens, config.share_prompts) {}

void Scheduler::add(Sequence& sequence) {
  prompts_.add_request(sequence);
  waiting_.push_back(&sequence);
}

void Scheduler::remove(Sequence& sequence) {
  drop_kv(sequence);
  std::erase(waiting_, &sequence);
  std::erase(preempted_, &sequence);
  std::erase(running_, &sequence);
  prompts_.remove_request(sequence);
}

int32_t Scheduler::num_waiting() const {
  return static_cast<int32_t>(waiting_.size() + preempted_.size());
}

const std::vector<ScheduledChunk>& Scheduler::plan(const WeightSetPtr& current) {
  plan_.clear();
  budget_tokens_ = config_.max_batch_tokens;
  plan_decodes();
  plan_prefills(current);
  admit(current);
  WARPROLL_CHECK(!plan_.empty() || running_.empty(),
                 std::to_string(running_.size()) + " sequences run and none can get on");
  return plan_;
}

// While a sequence gets room, it or ones behind it in running_ may be preempted, never ones before.
void Scheduler::plan_decodes() {
  for (size_t i = 0; i < running_.size();) {
    Sequence& sequence = *running_[i];
    if (sequence.is_decoding() && sequence.num_computed > 0) schedule(sequence, 1);
    if (i < running_.size() && running_[i] == &sequence) ++i;
  }
}

void Scheduler::plan_prefills(const WeightSetPtr& current) {
  for (size_t i = 0; i < running_.size();) {
    Sequence& sequence = *running_[i];
    const bool is_planned = std::any_of(
        plan_.begin(), plan_.end(), [&](const auto& chunk) { return chunk.sequence == &sequence; });
    if (!is_planned && budget_tokens_ > 0 && start(sequence, current)) {
      schedule(sequence, std::min({sequence.size() - sequence.num_computed,
                                   config_.prefill_chunk_tokens, budget_tokens_}));
    }
    if (i < running_.size() && running_[i] == &sequence) ++i;
  }
}

void Scheduler::admit(const WeightSetPtr& current) {
  int32_t promised_blocks = 0;
  for (const Sequence* sequence : running_) {
    promised_blocks +=
        std::max(0, blocks_for(sequence->size()) - static_cast<int32_t>(sequence->blocks.size()));
  }
  while (static_cast<int32_t>(running_.size()) < config_.max_running_sequences &&
         budget_tokens_ > 0) {
    auto& queue = preempted_.empty() ? waiting_ : preempted_;
    if (queue.empty() || !fits(*queue.front(), promised_blocks)) return;
    Sequence& sequence = *queue.front();
    queue.pop_front();
    if (sequence.admission_order == 0) {
      sequence.admission_order = ++num_admissions_;
      const auto now = std::chrono::system_clock::now().time_since_epoch();
      sequence.admitted_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    }
    insert_by_admission(running_, sequence);
    if (start(sequence, current)) {
      schedule(sequence, std::min({sequence.size() - sequence.num_computed,
                                   config_.prefill_chunk_tokens, budget_tokens_}));
    }
    promised_blocks +=
        std::max(0, blocks_for(sequence.size()) - static_cast<int32_t>(sequence.blocks.size()));
  }
}

bool Scheduler::fits(const Sequence& sequence, int32_t promised_blocks) {
  const auto has_room = [&] {
    const int32_t needed = blocks_for(sequence.size()) - prompts_.num_shared_blocks(sequence);
    return needed + promised_blocks <= blocks_.num_free();
  };
  // With nothing running only cached prompts hold blocks, and a request that could not fit into
  // all blocks was refused.
  while (!has_room()) {
    if (!running_.empty() || !prompts_.evict_one()) return false;
  }
  return true;
}

// False: it waits for another sequence that computes the same prompt.
bool Scheduler::start(Sequence& sequence, const WeightSetPtr& current) {
  if (sequence.num_computed > 0) return true;
  const bool is_current = sequence.weights == nullptr || sequence.weights == current;
  if (is_current && sequence.blocks.empty() &&
      prompts_.start(sequence) == PromptCache::Start::kWait)
    return false;
  if (sequence.weights == nullptr) sequence.weights = current;
  return true;
}

void Scheduler::schedule(Sequence& sequence, int32_t num_tokens) {
  if (make_room(sequence, num_tokens)) {
    plan_.push_back({&sequence, num_tokens});
    budget_tokens_ -= num_tokens;
  } else if (!sequence.blocks.empty()) {
    preempt(sequence);
  }
}

bool Scheduler::make_room(Sequence& sequence, int32_t num_tokens) {
  const int32_t first = sequence.num_computed / config_.block_tokens;
  const int32_t end = blocks_for(sequence.num_computed + num_tokens);
  for (int32_t i = first; i < end; ++i) {
    while (!make_writable(sequence, static_cast<size_t>(i))) {
      if (!reclaim(sequence)) return false;
    }
  }
  return true;
}

bool Scheduler::reserve_next(Sequence& sequence) {
  return make_writable(sequence, static_cast<size_t>(sequence.size() / config_.block_tokens));
}

// False: a block is needed and none is free.
bool Scheduler::make_writable(Sequence& sequence, size_t block_index) {
  const bool is_new = block_index >= sequence.blocks.size();
  if (!is_new && blocks_.num_owners(sequence.blocks[block_index]) == 1) return true;
  const auto block = blocks_.allocate();
  if (!block) return false;
  if (is_new) {
    sequence.blocks.push_back(*block);
    return true;
  }
  copy_block_(sequence.blocks[block_index], *block);
  blocks_.release(sequence.blocks[block_index]);
  sequence.blocks[block_index] = *block;
  return true;
}

// Takes blocks from somebody who matters less than `sequence`. False: nobody is left.
bool Scheduler::reclaim(const Sequence& sequence) {
  if (prompts_.evict_one()) return true;
  const auto victim = std::find_if(running_.rbegin(), running_.rend(), [&](const Sequence* other) {
    return !other->blocks.empty() && other->admission_order > sequence.admission_order;
  });
  if (victim == running_.rend()) return false;
  preempt(**victim);
  return true;
}

void Scheduler::computed(Sequence& sequence, int32_t num_tokens, int32_t route_ids_per_token) {
  sequence.num_computed += num_tokens;
  prompts_.computed(sequence, route_ids_per_token);
}

void Scheduler::drop_kv(Sequence& sequence) {
  for (const int32_t block : sequence.blocks) blocks_.release(block);
  sequence.blocks.clear();
  sequence.num_computed = 0;
  prompts_.resign(sequence);
  if (sequence.num_sampled() == 0) sequence.forget_routes();
}

void Scheduler::preempt(Sequence& sequence) {
  drop_kv(sequence);
  if (sequence.num_sampled() > 0) sequence.record_event(EventKind::kPreemptRecompute);
  unplan(sequence);
  std::erase(running_, &sequence);
  insert_by_admission(preempted_, sequence);
  ++num_preemptions_;
}

void Scheduler::unplan(const Sequence& sequence) {
  for (const ScheduledChunk& chunk : plan_) {
    if (chunk.sequence == &sequence) budget_tokens_ += chunk.num_tokens;
  }
  std::erase_if(plan_, [&](const ScheduledChunk& chunk) { return chunk.sequence == &sequence; });
}

int32_t Scheduler::blocks_for(int32_t num_tokens) const {
  return (num_tokens + config_.block_tokens - 1) / config_.block_tokens;
}

}  // namespace warproll
