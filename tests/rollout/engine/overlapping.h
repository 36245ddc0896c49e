// A backend with launch() and collect() over one without, as a GPU has them: what is launched is done
// in that order, what it gave is known when it is collected, and a fed step takes the tokens of the one
// before. Thread: one test.
#pragma once

#include <deque>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "rollout/engine/backend.h"

namespace warproll {

class OverlappingSteps {
 public:
  explicit OverlappingSteps(ModelBackend backend) : backend_(std::move(backend)) {}

  void launch(const ForwardBatch& batch, const WeightSet& weights,
              std::span<const RowSampling> rows, bool fed, bool want_routes) {
    if (steps_.size() == 2) throw std::logic_error("more than two steps under way");
    ForwardBatch now = batch;
    std::vector<int32_t> ids(batch.token_ids.begin(), batch.token_ids.end());
    if (fed) {
      if (last_.size() != ids.size()) throw std::logic_error("fed by a step of another size");
      for (size_t t = 0; t < ids.size(); ++t)
        ids[t] = last_[t].token_id < 0 ? 0 : last_[t].token_id;
      ++num_fed;
    }
    now.token_ids = ids;
    Step step;
    step.out.want_routes = want_routes;
    backend_.forward(now, weights, step.out);
    const auto vocab = static_cast<size_t>(weights.config.vocab_size);
    for (size_t i = 0; i < rows.size(); ++i) {
      const SamplingRow row =
          with_logits(rows[i], std::span<const float>(step.out.logits).subspan(i * vocab, vocab));
      step.sampled.push_back(sample_token_cpu(row));
    }
    last_ = step.sampled;
    steps_.push_back(std::move(step));
  }

  void collect(std::span<SampledToken> sampled, ForwardOutput& out) {
    Step step = std::move(steps_.front());
    steps_.pop_front();
    if (sampled.size() != step.sampled.size()) throw std::logic_error("rows that do not fit");
    std::copy(step.sampled.begin(), step.sampled.end(), sampled.begin());
    out.routes = std::move(step.out.routes);
  }

  uint64_t num_fed = 0;

 private:
  struct Step {
    std::vector<SampledToken> sampled;
    ForwardOutput out;
  };
  const ModelBackend backend_;
  std::vector<SampledToken> last_;
  std::deque<Step> steps_;
};

inline ModelBackend overlapping(ModelBackend backend,
                                std::shared_ptr<OverlappingSteps>* steps_out = nullptr) {
  auto steps = std::make_shared<OverlappingSteps>(backend);
  if (steps_out != nullptr) *steps_out = steps;
  backend.launch = [steps](const ForwardBatch& batch, const WeightSet& weights,
                           std::span<const RowSampling> rows, bool fed, bool want_routes) {
    steps->launch(batch, weights, rows, fed, want_routes);
  };
  backend.collect = [steps](std::span<SampledToken> sampled, ForwardOutput& out) {
    steps->collect(sampled, out);
  };
  return backend;
}

}  // namespace warproll
