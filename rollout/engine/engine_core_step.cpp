// EngineCore's steps: planning, running or launching, and taking the tokens in.
#include <algorithm>
#include <utility>

#include "rollout/engine/engine_core.h"
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

}  // namespace warproll
