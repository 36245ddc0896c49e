#include "rollout/engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "rollout/engine/request_check.h"
#include "rollout/engine/sequence_text.h"

namespace warproll {
namespace {

int64_t unix_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

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

bool EngineCore::step(TimePoint now) {
  const auto start = std::chrono::steady_clock::now();
  expire(now);
  if (!step_under_way() && !begin_step()) return false;
  if (step_under_way()) {
    const std::vector<RowUnderWay> rows = std::move(under_way_);
    under_way_.clear();
    run_ahead(rows);
    collect(rows);
    if (live_.empty()) settle();  // rows for nothing hold weights
  }
  ++stats_.num_steps;
  stats_.count_step_us(static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                                 std::chrono::steady_clock::now() - start)
                                                 .count()));
  return true;
}

// Plans a step. One of decodes alone is put under way where the backend can; any other runs here.
// False: there is nothing to run.
bool EngineCore::begin_step() {
  std::vector<ScheduledChunk> chunks = scheduler_.plan(current_);
  if (chunks.empty()) return false;
  const WeightSetPtr& first = chunks.front().sequence->weights;
  const bool decodes_alone = std::all_of(chunks.begin(), chunks.end(), [&](const auto& chunk) {
    return chunk.num_tokens == 1 && chunk.reaches_end() && chunk.sequence->weights == first;
  });
  if (decodes_alone && runner_.can_launch()) {
    launch(chunks);
    return true;
  }
  // By version, otherwise in the order of the plan: no forward pass mixes two versions (W1).
  std::vector<ScheduledChunk> same;
  while (!chunks.empty()) {
    const WeightSetPtr weights = chunks.front().sequence->weights;
    const auto is_other = [&](const auto& chunk) { return chunk.sequence->weights != weights; };
    const auto rest = std::stable_partition(chunks.begin(), chunks.end(),
                                            [&](const auto& chunk) { return !is_other(chunk); });
    same.assign(chunks.begin(), rest);
    chunks.erase(chunks.begin(), rest);
    run_chunks(same);
  }
  return true;
}

void EngineCore::launch(std::span<const ScheduledChunk> chunks) {
  runner_.launch(chunks);
  ++stats_.num_forward_passes;
  for (const ScheduledChunk& chunk : chunks) {
    under_way_.push_back({chunk.sequence->request.request_id, chunk.sequence->admission_order,
                          chunk.sequence->weights});
  }
}

Sequence* EngineCore::sequence_of(const RowUnderWay& row) const {
  const auto found = live_.find(row.request_id);
  const bool same = found != live_.end() && found->second->admission_order == row.admission_order;
  return same ? found->second.get() : nullptr;
}

// Puts the step after the one under way on the device before its tokens are known, when it is certain
// what it will be but for sequences that a token ends: their rows are then for nothing.
void EngineCore::run_ahead(std::span<const RowUnderWay> rows) {
  const auto num_running = static_cast<int32_t>(scheduler_.running().size());
  const bool others_wait =
      scheduler_.num_waiting() > 0 && num_running < config_.max_running_sequences;
  if (!config_.overlap_steps || others_wait || static_cast<int32_t>(rows.size()) != num_running)
    return;
  std::vector<ScheduledChunk> chunks;
  for (const RowUnderWay& row : rows) {
    Sequence* const sequence = sequence_of(row);
    if (sequence == nullptr) return;
    const bool ends = sequence->num_sampled() + 1 >= sequence->request.sampling.max_tokens ||
                      sequence->size() + 1 >= context_tokens_;
    if (ends || !scheduler_.reserve_next(*sequence)) return;
    chunks.push_back({sequence, 1, /*ahead=*/true});
  }
  launch(chunks);
}

void EngineCore::collect(std::span<const RowUnderWay> rows) {
  const std::span<const SampledToken> sampled = runner_.collect(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    Sequence* const sequence = sequence_of(rows[i]);
    if (sequence == nullptr) continue;  // it ended meanwhile
    runner_.record_route(*sequence, i);
    take_computed(*sequence, 1, &sampled[i]);
  }
}

// So that nothing is under way when weights or sequences change hands.
void EngineCore::settle() {
  while (step_under_way()) collect(std::exchange(under_way_, {}));
}

void EngineCore::run_chunks(std::span<const ScheduledChunk> chunks) {
  const std::span<const SampledToken> sampled = runner_.run(chunks);
  ++stats_.num_forward_passes;
  size_t next_sampled = 0;
  for (const ScheduledChunk& chunk : chunks) {
    const bool samples = chunk.reaches_end();
    take_computed(*chunk.sequence, chunk.num_tokens, samples ? &sampled[next_sampled] : nullptr);
    next_sampled += samples ? 1 : 0;
  }
}

void EngineCore::take_computed(Sequence& sequence, int32_t num_tokens, const SampledToken* token) {
  stats_.forwarded_tokens += static_cast<uint64_t>(num_tokens);
  scheduler_.computed(sequence, num_tokens, runner_.route_ids_per_token());
  if (token == nullptr) return;
  const auto end = take_token(sequence, *token);
  if (end) finish(sequence.request.request_id, *end);
}

std::optional<SampleEnd> EngineCore::take_token(Sequence& sequence, const SampledToken& token) {
  if (token.token_id < 0) {
    return SampleEnd{
        FinishReason::kError, "non_finite_logits",
        "logits at position " + std::to_string(sequence.size() - 1) + " under weight version " +
            std::to_string(sequence.weights->weight_version) + " are not finite numbers"};
  }
  if (sequence.num_sampled() == 0) sequence.first_token_ns = unix_ns();
  sequence.append(token);
  ++stats_.sampled_tokens;
  const SamplingParams& sampling = sequence.request.sampling;
  const bool is_eos = !sampling.ignore_eos && contains(model_.eos_token_ids, token.token_id);
  if (is_eos || contains(sampling.stop_token_ids, token.token_id))
    return SampleEnd{FinishReason::kStop, "", ""};
  if (sequence.text != nullptr && sequence.text->feed(token.token_id))
    return SampleEnd{FinishReason::kStop, "", ""};
  if (sequence.num_sampled() >= sampling.max_tokens || sequence.size() >= context_tokens_)
    return SampleEnd{FinishReason::kLength, "", ""};
  return std::nullopt;
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
