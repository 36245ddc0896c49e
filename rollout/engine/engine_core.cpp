#include "rollout/engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "rollout/engine/request_check.h"
#include "rollout/engine/sequence_text.h"

namespace warproll {

Result<std::unique_ptr<EngineCore>> EngineCore::create(EngineParts parts) {
  if (parts.weights == nullptr) return invalid_argument("engine: no weights to start with");
  WARPROLL_TRY(validate(parts.config, parts.weights->config));
  return std::unique_ptr<EngineCore>(new EngineCore(std::move(parts)));
}

EngineCore::EngineCore(EngineParts parts)
    : config_(parts.config),
      model_(parts.weights->config),
      context_tokens_(config_.context_tokens(model_)),
      tokenizer_(std::move(parts.tokenizer)),
      current_(std::move(parts.weights)),
      scheduler_(config_, parts.backend.copy_block),
      runner_(model_, config_.block_tokens, std::move(parts.backend)) {}

Status EngineCore::check(const SampleRequest& request) const {
  return check_request(request, config_, model_, tokenizer_ != nullptr);
}

Status EngineCore::submit(SampleRequest request) {
  WARPROLL_TRY(check(request));
  const uint64_t request_id = request.request_id;
  if (live_.contains(request_id)) {
    return already_exists("request " + std::to_string(request_id) + " is live already");
  }
  WARPROLL_TRY_ASSIGN(matcher, StopStringMatcher::create(request.sampling.stop_strings));
  auto sequence = std::make_unique<Sequence>(std::move(request));
  if (tokenizer_ != nullptr)
    sequence->text = std::make_unique<SequenceText>(tokenizer_, std::move(matcher));
  scheduler_.add(*sequence);
  live_.emplace(request_id, std::move(sequence));
  return ok_status();
}

void EngineCore::abort(uint64_t request_id, const std::string& error_type,
                       const std::string& message) {
  if (live_.contains(request_id)) finish(request_id, {FinishReason::kAbort, error_type, message});
}

void EngineCore::expire(TimePoint now) {
  const int64_t now_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
  for (auto next = live_.begin(); next != live_.end();) {
    const Sequence& sequence = *(next++)->second;
    const int64_t deadline_ns = sequence.request.deadline_ns;
    if (deadline_ns == 0 || now_ns < deadline_ns) continue;
    finish(sequence.request.request_id,
           {FinishReason::kAbort, "deadline",
            "past its deadline by " + std::to_string((now_ns - deadline_ns) / 1000000) +
                " ms with " + std::to_string(sequence.num_sampled()) + " tokens sampled"});
  }
}

void EngineCore::finish(uint64_t request_id, const SampleEnd& end) {
  const auto found = live_.find(request_id);
  Sequence& sequence = *found->second;
  scheduler_.remove(sequence);
  finished_.push_back(make_generated_sample(sequence, model_, end));
  live_.erase(found);
  ++stats_.finished_samples;
}

std::vector<GeneratedSample> EngineCore::take_finished() { return std::exchange(finished_, {}); }

Status EngineCore::switch_to(WeightSetPtr weights) {
  if (weights == nullptr) return invalid_argument("engine: no weights to install");
  WARPROLL_TRY(check_same_shape(weights->config, model_));
  if (weights == current_) return ok_status();
  current_ = std::move(weights);
  scheduler_.clear_prompts();
  ++stats_.num_flips;
  return ok_status();
}

Result<int32_t> EngineCore::install_weights(WeightSetPtr weights,
                                            const std::function<void()>& before_flip) {
  settle();
  if (before_flip && weights != nullptr && check_same_shape(weights->config, model_).ok()) {
    before_flip();
  }
  WARPROLL_TRY(switch_to(std::move(weights)));
  int32_t num_in_flight = 0;
  for (auto next = live_.begin(); next != live_.end();) {
    Sequence& sequence = *(next++)->second;  // flip() may end it
    if (!sequence.has_started()) continue;
    ++num_in_flight;
    flip(sequence, sequence.request.in_flight);
  }
  return num_in_flight;
}

void EngineCore::flip(Sequence& sequence, InFlightPolicy policy) {
  if (sequence.weights == current_ || policy == InFlightPolicy::kPin) return;
  if (sequence.num_sampled() > 0 && policy == InFlightPolicy::kAbort) {
    finish(sequence.request.request_id,
           {FinishReason::kAbort, "weights_changed",
            "weight version " + std::to_string(current_->weight_version) + " was committed after " +
                std::to_string(sequence.num_sampled()) + " tokens under version " +
                std::to_string(sequence.weights->weight_version)});
    return;
  }
  sequence.weights = current_;
  if (policy == InFlightPolicy::kRecompute || sequence.is_recomputing() ||
      sequence.num_sampled() == 0)
    scheduler_.drop_kv(sequence);
  if (sequence.num_sampled() == 0) return;
  sequence.record_event(policy == InFlightPolicy::kRecompute ? EventKind::kFlipRecompute
                                                             : EventKind::kFlipKeep);
}

int32_t EngineCore::pinned_sequences() const {
  return static_cast<int32_t>(std::count_if(live_.begin(), live_.end(), [&](const auto& entry) {
    return entry.second->has_started() && entry.second->weights != current_;
  }));
}

Result<int32_t> EngineCore::release_pins(InFlightPolicy fallback) {
  if (fallback == InFlightPolicy::kPin) {
    return invalid_argument("engine: pin fallback is 'pin', wanted keep, recompute or abort");
  }
  settle();
  int32_t num_released = 0;
  for (auto next = live_.begin(); next != live_.end();) {
    Sequence& sequence = *(next++)->second;
    if (!sequence.has_started() || sequence.weights == current_) continue;
    ++num_released;
    flip(sequence, fallback);
  }
  return num_released;
}

Status EngineCore::script_event(uint64_t request_id, EventKind kind, WeightSetPtr weights) {
  settle();
  const auto found = live_.find(request_id);
  if (found == live_.end() || !found->second->has_started()) {
    return failed_precondition("request " + std::to_string(request_id) +
                               " is not running, wanted a started sequence for the event " +
                               std::string(to_string(kind)));
  }
  WARPROLL_TRY(switch_to(std::move(weights)));
  Sequence& sequence = *found->second;
  if (kind == EventKind::kPreemptRecompute) {
    sequence.weights = current_;
    scheduler_.preempt(sequence);
    return ok_status();
  }
  sequence.weights = current_;
  const bool keeps_kv = kind == EventKind::kFlipKeep && !sequence.is_recomputing();
  if (!keeps_kv || sequence.num_sampled() == 0) scheduler_.drop_kv(sequence);
  if (sequence.num_sampled() > 0) sequence.record_event(kind);
  return ok_status();
}

int32_t EngineCore::sequence_tokens(uint64_t request_id) const {
  const auto found = live_.find(request_id);
  return found == live_.end() ? 0 : found->second->size();
}

EngineStats EngineCore::stats() const {
  EngineStats stats = stats_;
  stats.num_preemptions = scheduler_.num_preemptions();
  stats.num_prompt_hits = scheduler_.num_prompt_hits();
  stats.running_sequences = static_cast<int32_t>(scheduler_.running().size());
  stats.waiting_sequences = scheduler_.num_waiting();
  stats.pinned_sequences = pinned_sequences();
  stats.free_blocks = scheduler_.num_free_blocks();
  stats.total_blocks = config_.num_blocks;
  stats.weight_version = current_->weight_version;
  return stats;
}

}  // namespace warproll
