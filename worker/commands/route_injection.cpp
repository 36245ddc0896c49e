#include "worker/commands/route_injection.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace warproll {
namespace {

constexpr size_t kDrawnSteps = 16;  // drawn once, then taken in turns: drawing costs host time
constexpr int64_t kLookEvery = 16;  // free routes come to the host every so many steps

class RoutedBackend {
 public:
  RoutedBackend(ModelBackend backend, const ModelConfig& config, bool uniform,
                std::shared_ptr<RouteCount> count)
      : backend_(std::move(backend)),
        config_(config),
        uniform_(uniform),
        count_(std::move(count)) {}

  // Prefill is routed freely and not counted.
  void launch(const ForwardBatch& batch, const WeightSet& weights,
              std::span<const RowSampling> rows, bool fed, bool want_routes) {
    const size_t tokens = batch.token_ids.size();
    const bool decodes_alone = tokens == batch.context_lens.size();
    if (!uniform_ || !decodes_alone) {
      const bool look = decodes_alone && steps_++ % kLookEvery == 0;
      backend_.launch(batch, weights, rows, fed, want_routes || look);
      looks_.push_back(look ? tokens : 0);
      return;
    }
    std::vector<std::vector<uint16_t>>& drawn = drawn_[tokens];
    if (drawn.size() < kDrawnSteps) drawn.push_back(draw(tokens));
    const std::vector<uint16_t>& routes = drawn[static_cast<size_t>(steps_++) % drawn.size()];
    ForwardBatch routed = batch;
    routed.given_routes = routes;
    backend_.launch(routed, weights, rows, fed, want_routes);
    count(routes, tokens);
    looks_.push_back(0);
  }

  void collect(std::span<SampledToken> sampled, ForwardOutput& out) {
    backend_.collect(sampled, out);
    const size_t tokens = looks_.front();
    looks_.pop_front();
    if (tokens > 0) count(out.routes, tokens);
  }

 private:
  // [T, L, K]
  std::vector<uint16_t> draw(size_t tokens) {
    const auto k = static_cast<size_t>(config_.num_experts_per_tok);
    const size_t rows = tokens * static_cast<size_t>(config_.num_moe_layers());
    std::vector<uint16_t> experts(static_cast<size_t>(config_.num_experts)), routes;
    std::iota(experts.begin(), experts.end(), uint16_t{0});
    for (size_t row = 0; row < rows; ++row) {
      for (size_t i = 0; i < k; ++i)
        std::swap(experts[i], experts[i + random_() % (experts.size() - i)]);
      routes.insert(routes.end(), experts.begin(), experts.begin() + static_cast<long>(k));
    }
    return routes;
  }

  void count(const std::vector<uint16_t>& routes, size_t tokens) {
    const auto k = static_cast<size_t>(config_.num_experts_per_tok);
    const auto layers = static_cast<size_t>(config_.num_moe_layers());
    std::vector<bool> seen;
    for (size_t layer = 0; layer < layers; ++layer) {
      seen.assign(static_cast<size_t>(config_.num_experts), false);
      for (size_t t = 0; t < tokens; ++t) {
        for (size_t i = 0; i < k; ++i) seen[routes[(t * layers + layer) * k + i]] = true;
      }
      count_->sum += static_cast<double>(std::count(seen.begin(), seen.end(), true));
      ++count_->count;
    }
  }

  const ModelBackend backend_;
  const ModelConfig config_;
  const bool uniform_;
  const std::shared_ptr<RouteCount> count_;
  std::mt19937_64 random_{1};
  std::map<size_t, std::vector<std::vector<uint16_t>>> drawn_;  // by T
  std::deque<size_t> looks_;  // of steps under way: their tokens if their routes are looked at
  int64_t steps_ = 0;
};

}  // namespace

ModelBackend with_routing(ModelBackend backend, const ModelConfig& config, bool uniform,
                          std::shared_ptr<RouteCount> count) {
  auto routed = std::make_shared<RoutedBackend>(backend, config, uniform, std::move(count));
  backend.launch = [routed](const ForwardBatch& batch, const WeightSet& weights,
                            std::span<const RowSampling> rows, bool fed, bool want_routes) {
    routed->launch(batch, weights, rows, fed, want_routes);
  };
  backend.collect = [routed](std::span<SampledToken> sampled, ForwardOutput& out) {
    routed->collect(sampled, out);
  };
  return backend;
}

}  // namespace warproll
