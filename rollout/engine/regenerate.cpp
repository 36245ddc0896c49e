#include "rollout/engine/regenerate.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>

#include "rollout/engine/engine_core.h"

namespace warproll {
namespace {

constexpr uint64_t kRequestId = 1;
constexpr int32_t kBlockTokens = 16;

using WeightsByVersion = std::map<uint64_t, WeightSetPtr>;

Result<WeightsByVersion> find_weights(const Trajectory& stored, const WeightLookup& lookup) {
  WeightsByVersion weights;
  for (const VersionDigest& wanted : stored.version_digests) {
    WARPROLL_TRY_ASSIGN(found, lookup(wanted.weight_version, wanted.weight_digest));
    if (found == nullptr || found->weight_digest != wanted.weight_digest) {
      return not_found("weight version " + std::to_string(wanted.weight_version) + ": got digest " +
                       (found == nullptr ? "none" : to_hex(found->weight_digest)) + ", wanted " +
                       to_hex(wanted.weight_digest));
    }
    weights[wanted.weight_version] = std::move(found);
  }
  return weights;
}

Result<WeightSetPtr> weights_of(const WeightsByVersion& weights, uint64_t version) {
  const auto found = weights.find(version);
  if (found == weights.end()) {
    return invalid_argument("the record names weight version " + std::to_string(version) +
                            " without its digest");
  }
  return found->second;
}

SampleRequest request_of(const Trajectory& stored) {
  SampleRequest request;
  request.request_id = kRequestId;
  request.prompt_ids = std::make_shared<const std::vector<int32_t>>(
      stored.token_ids.begin(), stored.token_ids.begin() + stored.prompt_len);
  request.sample_index = stored.sample_index;
  request.sampling = stored.sampling;
  request.sampling.ignore_eos = true;
  request.sampling.stop_token_ids.clear();
  request.sampling.stop_strings.clear();
  request.sampling.max_tokens = static_cast<int32_t>(stored.token_ids.size()) - stored.prompt_len;
  request.return_routes = stored.routed_experts.has_value();
  return request;
}

Result<std::unique_ptr<EngineCore>> make_core(const Trajectory& stored, WeightSetPtr weights,
                                              const ModelRunner& runner) {
  const auto num_tokens = static_cast<int32_t>(stored.token_ids.size());
  EngineParts parts;
  parts.config.max_running_sequences = 1;
  parts.config.overlap_steps = false;  // events come before the tokens they are said to
  parts.config.block_tokens = kBlockTokens;
  parts.config.num_blocks = num_tokens / kBlockTokens + 1;
  parts.backend =
      runner.make_backend(weights->config, backend_sizes(parts.config, weights->config));
  parts.weights = std::move(weights);
  return EngineCore::create(std::move(parts));
}

std::string bits_of(float value) {
  char text[48];
  std::snprintf(text, sizeof text, "%.9g (0x%08x)", static_cast<double>(value),
                std::bit_cast<uint32_t>(value));
  return text;
}

// Compares position by position; routes of a position are those of [position] in [T - 1, L, K].
class Comparison {
 public:
  Comparison(const Trajectory& stored, const GeneratedSample& made)
      : stored_(stored), made_(made) {}

  std::optional<SampleDifference> first_difference() {
    const auto total = static_cast<int32_t>(stored_.token_ids.size());
    size_t run = 0;
    for (position_ = 0; position_ < total && !difference_; ++position_) {
      if (position_ >= stored_.prompt_len) compare_token(run);
      if (position_ < total - 1) compare_routes();
    }
    return std::move(difference_);
  }

 private:
  void compare_token(size_t& run) {
    const auto stored_at = static_cast<size_t>(position_);
    const auto made_at = static_cast<size_t>(position_ - stored_.prompt_len);
    if (made_at >= made_.token_ids.size()) {
      differ("token_ids", std::to_string(stored_.token_ids[stored_at]),
             "none: " + made_.error_type + " " + made_.error_message);
      return;
    }
    while (run + 1 < stored_.version_runs.size() &&
           stored_.version_runs[run + 1].start <= position_)
      ++run;
    compare("token_ids", stored_.token_ids[stored_at], made_.token_ids[made_at]);
    compare("logprobs", stored_.logprobs[stored_at], made_.logprobs[made_at]);
    compare("raw_logprobs", stored_.raw_logprobs[stored_at], made_.raw_logprobs[made_at]);
    compare("support_logmass", stored_.support_logmass[stored_at], made_.support_logmass[made_at]);
    compare("weight_version", stored_.version_runs[run].weight_version,
            made_.weight_versions[made_at]);
  }
  void compare_routes() {
    if (!stored_.routed_experts || difference_) return;
    const std::string stored = routes_at(*stored_.routed_experts);
    const std::string made = made_.routed_experts ? routes_at(*made_.routed_experts) : "none";
    if (stored != made) differ("routed_experts", stored, made);
  }
  [[nodiscard]] std::string routes_at(const RoutedExperts& routes) const {
    const size_t ids = static_cast<size_t>(routes.num_layers) * static_cast<size_t>(routes.top_k);
    const size_t first = static_cast<size_t>(position_) * ids * routes.bytes_per_id;
    std::string text;
    for (size_t i = 0; i < ids; ++i) {
      const size_t at = first + i * routes.bytes_per_id;
      if (at + routes.bytes_per_id > routes.data.size()) return text + " (cut off)";
      const int id = routes.data[at] + (routes.bytes_per_id == 2 ? routes.data[at + 1] << 8 : 0);
      text += (i == 0 ? "" : " ") + std::to_string(id);
    }
    return text;
  }
  void compare(const char* field, float stored, float made) {
    if (std::bit_cast<uint32_t>(stored) != std::bit_cast<uint32_t>(made))
      differ(field, bits_of(stored), bits_of(made));
  }
  template <typename Integer>
  void compare(const char* field, Integer stored, Integer made) {
    if (stored != made) differ(field, std::to_string(stored), std::to_string(made));
  }
  void differ(const char* field, std::string stored, std::string made) {
    if (!difference_)
      difference_ = SampleDifference{position_, field, std::move(stored), std::move(made)};
  }

  const Trajectory& stored_;
  const GeneratedSample& made_;
  int32_t position_ = 0;
  std::optional<SampleDifference> difference_;
};

}  // namespace

Result<Regeneration> regenerate(const Trajectory& stored, const WeightLookup& lookup,
                                const ModelRunner& runner) {
  WARPROLL_TRY(validate(stored, 0).with_context("record to regenerate"));
  if (stored.activation_dtype != to_string(runner.activations)) {
    return failed_precondition("the record was made with activations " + stored.activation_dtype +
                               ", wanted " + std::string(to_string(runner.activations)));
  }
  const auto num_tokens = static_cast<int32_t>(stored.token_ids.size());
  if (num_tokens == stored.prompt_len) return Regeneration{};  // it ended before its first token
  WARPROLL_TRY_ASSIGN(weights, find_weights(stored, lookup));
  WARPROLL_TRY_ASSIGN(initial, weights_of(weights, stored.version_runs.front().weight_version));
  WARPROLL_TRY_ASSIGN(core, make_core(stored, std::move(initial), runner));
  WARPROLL_TRY(core->submit(request_of(stored)));
  const auto run_to = [&](int32_t size) {
    while (core->sequence_tokens(kRequestId) != 0 && core->sequence_tokens(kRequestId) < size)
      core->step(std::chrono::steady_clock::now());
  };
  for (const TrajectoryEvent& event : stored.events) {
    if (event.at_token >= num_tokens) break;  // nothing was sampled after it
    run_to(event.at_token);
    if (core->num_live() == 0) break;  // ended early, the comparison tells how
    WARPROLL_TRY_ASSIGN(next, weights_of(weights, event.weight_version));
    WARPROLL_TRY(core->script_event(kRequestId, event.kind, std::move(next)));
  }
  run_to(num_tokens + 1);
  Regeneration regeneration;
  regeneration.sample = std::move(core->take_finished().at(0));
  regeneration.first_difference = Comparison(stored, regeneration.sample).first_difference();
  return regeneration;
}

}  // namespace warproll
