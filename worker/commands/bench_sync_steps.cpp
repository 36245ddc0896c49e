#include "worker/commands/bench_sync_steps.h"

#include <algorithm>
#include <utility>

namespace warproll {
namespace {

double us(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

}  // namespace

void StepLog::add(TimePoint end, size_t num_tokens) {
  const std::lock_guard lock(mutex_);
  steps_.push_back({end, num_tokens});
}

size_t StepLog::num_steps() const {
  const std::lock_guard lock(mutex_);
  return steps_.size();
}

StepWindow StepLog::window(TimePoint from, TimePoint to) const {
  StepWindow window;
  std::vector<double> gaps;
  double inside_us = 0;
  size_t inside_tokens = 0;
  const std::lock_guard lock(mutex_);
  for (size_t i = 1; i < steps_.size(); ++i) {
    const TimePoint begun = steps_[i - 1].end, ended = steps_[i].end;
    if (ended <= from || begun >= to) continue;
    const double gap = us(ended - begun);
    gaps.push_back(gap);
    if (gap > window.longest_gap_us) {
      window.longest_gap_us = gap;
      window.longest_from = begun;
      window.longest_to = ended;
    }
    if (begun < from || ended > to) continue;
    inside_us += gap;
    inside_tokens += steps_[i].num_tokens;
  }
  window.num_gaps = gaps.size();
  if (inside_us > 0) window.tokens_per_s = 1e6 * static_cast<double>(inside_tokens) / inside_us;
  if (!gaps.empty()) {
    const auto middle = gaps.begin() + static_cast<ptrdiff_t>(gaps.size() / 2);
    std::nth_element(gaps.begin(), middle, gaps.end());
    window.median_gap_us = *middle;
  }
  return window;
}

ModelBackend with_step_log(ModelBackend backend, std::shared_ptr<StepLog> log) {
  const auto ended = [log = std::move(log)](size_t num_tokens) {
    log->add(std::chrono::steady_clock::now(), num_tokens);
  };
  ModelBackend logged = backend;
  logged.forward = [forward = backend.forward, ended](
                       const ForwardBatch& batch, const WeightSet& weights, ForwardOutput& out) {
    forward(batch, weights, out);
    ended(batch.logits_rows.size());
  };
  if (backend.collect) {
    logged.collect = [collect = backend.collect, ended](std::span<SampledToken> sampled,
                                                        ForwardOutput& out) {
      collect(sampled, out);
      ended(sampled.size());
    };
  }
  return logged;
}

}  // namespace warproll
