// RecordReplay: the independent oracle of a finished sample. From the request and the record (token
// ids, versions, events) it computes anew, position by position and without any engine code, what
// the engine must have reported: ids, log-probabilities, support masses, routes.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/philox.h"
#include "kernels/sampling.h"
#include "rollout/token_generator.h"

namespace warproll {

// A model with one sequence's cache.
class ReplayModel {
 public:
  virtual ~ReplayModel() = default;
  virtual void clear_cache() = 0;
  // Appends tokens at the end of the cache under a version; gives the last one's logits [V] and all
  // of their routes [n, L * K].
  virtual void forward(std::span<const int32_t> tokens, uint64_t version,
                       std::vector<float>& logits, std::vector<uint16_t>& routes) = 0;
};

struct ReplayedSample {
  std::vector<SampledToken> tokens;  // drawn with the request's random stream
  std::vector<SampledToken> scores;  // of the tokens in the record
  std::vector<uint16_t> routes;      // [T - 1, L * K]
};

// For messages: what the record says happened.
inline std::string describe(const SampleRequest& request, const GeneratedSample& record) {
  std::string text = "request " + std::to_string(request.request_id) + " (" +
                     std::string(to_string(request.in_flight)) + ", prompt of " +
                     std::to_string(request.prompt_ids->size()) + ", " +
                     std::to_string(record.token_ids.size()) + " sampled";
  for (const TrajectoryEvent& event : record.events) {
    text += ", " + std::string(to_string(event.kind)) + " v" +
            std::to_string(event.weight_version) + " at " + std::to_string(event.at_token);
  }
  return text + ")";
}

inline ReplayedSample replay_record(const SampleRequest& request, const GeneratedSample& record,
                                    ReplayModel& model) {
  ReplayedSample replayed;
  std::vector<int32_t> tokens = *request.prompt_ids;
  size_t cached = 0;
  size_t next_event = 0;
  size_t routed = 0;
  uint64_t version = record.weight_versions.empty() ? 0 : record.weight_versions.front();
  model.clear_cache();
  std::vector<float> logits;
  std::vector<uint16_t> routes;
  for (size_t i = 0; i < record.token_ids.size(); ++i) {
    while (next_event < record.events.size() &&
           record.events[next_event].at_token == static_cast<int32_t>(tokens.size())) {
      const TrajectoryEvent& event = record.events[next_event++];
      version = event.weight_version;
      if (event.kind == EventKind::kFlipKeep) continue;
      model.clear_cache();
      cached = 0;
    }
    EXPECT_EQ(record.weight_versions[i], version) << "of sampled token " << i;
    const std::span<const int32_t> missing = std::span<const int32_t>(tokens).subspan(cached);
    model.forward(missing, version, logits, routes);
    const size_t ids_per_token = routes.size() / missing.size();
    replayed.routes.insert(
        replayed.routes.end(),
        routes.begin() + static_cast<ptrdiff_t>((routed - cached) * ids_per_token), routes.end());
    cached = routed = tokens.size();
    SamplingRow row{
        logits,
        request.sampling.temperature,
        request.sampling.top_p,
        request.sampling.top_k,
        request.sampling.min_p,
        sampling_uniform(request.sampling.seed, static_cast<uint32_t>(request.sample_index),
                         static_cast<uint32_t>(tokens.size()))};
    replayed.tokens.push_back(sample_token_cpu(row));
    replayed.scores.push_back(score_token_cpu(row, record.token_ids[i]));
    tokens.push_back(record.token_ids[i]);
  }
  EXPECT_EQ(next_event, record.events.size()) << "events that no token follows";
  return replayed;
}

inline std::vector<uint16_t> unpack_routes(const RoutedExperts& routes) {
  std::vector<uint16_t> ids;
  for (size_t i = 0; i < routes.data.size(); i += routes.bytes_per_id) {
    uint16_t id = routes.data[i];
    if (routes.bytes_per_id == 2) id = static_cast<uint16_t>(id | routes.data[i + 1] << 8);
    ids.push_back(id);
  }
  return ids;
}

// Everything the record says is bit for bit what the oracle computes.
inline void expect_record_replays(const SampleRequest& request, const GeneratedSample& record,
                                  ReplayModel& model) {
  SCOPED_TRACE(describe(request, record));
  const ReplayedSample replayed = replay_record(request, record, model);
  ASSERT_EQ(record.logprobs.size(), record.token_ids.size());
  ASSERT_EQ(record.raw_logprobs.size(), record.token_ids.size());
  ASSERT_EQ(record.support_logmass.size(), record.token_ids.size());
  for (size_t i = 0; i < record.token_ids.size(); ++i) {
    ASSERT_EQ(record.token_ids[i], replayed.tokens[i].token_id)
        << "request " << request.request_id << ", sampled token " << i;
    ASSERT_EQ(record.logprobs[i], replayed.scores[i].logprob) << "sampled token " << i;
    ASSERT_EQ(record.raw_logprobs[i], replayed.scores[i].raw_logprob) << "sampled token " << i;
    ASSERT_EQ(record.support_logmass[i], replayed.scores[i].support_logmass) << "token " << i;
  }
  if (!request.return_routes || record.token_ids.empty()) return;
  ASSERT_TRUE(record.routed_experts.has_value());
  EXPECT_EQ(static_cast<size_t>(record.routed_experts->num_tokens),
            request.prompt_ids->size() + record.token_ids.size() - 1);
  EXPECT_EQ(unpack_routes(*record.routed_experts), replayed.routes);
}

}  // namespace warproll
