// Stored samples of a mixed run (policies, sampling parameters, flips, preemptions, shared prompts)
// are made again bit for bit from their records alone.
#include "rollout/engine/regenerate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/rollout/engine/real_model.h"

namespace warproll {
namespace {

// The record a collector would store.
Trajectory record_of(const SampleRequest& request, const GeneratedSample& sample) {
  Trajectory t;
  t.trajectory_id = "00000000000000000000000000000001-" + std::to_string(sample.request_id);
  t.producer_id[15] = 1;
  t.epoch = 1;
  t.seq = sample.request_id;
  t.task_id = t.group_id = "task";
  t.sample_index = request.sample_index;
  t.token_ids = *request.prompt_ids;
  t.prompt_len = static_cast<int32_t>(t.token_ids.size());
  t.token_ids.insert(t.token_ids.end(), sample.token_ids.begin(), sample.token_ids.end());
  const auto prompt_len = request.prompt_ids->size();
  t.loss_mask.assign(prompt_len, 0);
  t.loss_mask.resize(t.token_ids.size(), 1);
  const auto after_prompt = [&](const std::vector<float>& values) {
    std::vector<float> all(prompt_len, 0.0f);
    all.insert(all.end(), values.begin(), values.end());
    return all;
  };
  t.logprobs = after_prompt(sample.logprobs);
  t.raw_logprobs = after_prompt(sample.raw_logprobs);
  t.support_logmass = after_prompt(sample.support_logmass);
  for (size_t i = 0; i < sample.weight_versions.size(); ++i) {
    if (i == 0 || sample.weight_versions[i] != sample.weight_versions[i - 1]) {
      t.version_runs.push_back({static_cast<int32_t>(prompt_len + i), sample.weight_versions[i]});
    }
  }
  t.version_digests = sample.version_digests;
  t.events = sample.events;
  t.routed_experts = sample.routed_experts;
  t.finish_reason = sample.finish_reason;
  t.error_type = sample.error_type;
  t.error_message = sample.error_message;
  t.sampling = request.sampling;
  t.in_flight = request.in_flight;
  t.timings = {1, sample.admitted_ns, sample.first_token_ns, sample.first_token_ns + 1};
  t.model = "arith";
  t.activation_dtype = "f32";
  t.tokenizer_digest[0] = 1;
  t.engine_version = "test";
  return t;
}

class Regenerate : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { versions_ = load_arith(); }
  static void TearDownTestSuite() { versions_.clear(); }
  static Result<WeightSetPtr> lookup(uint64_t version, const Digest&) {
    if (version < 1 || version > 3) return not_found("version " + std::to_string(version));
    return versions_[version - 1];
  }

  static SampleRequest random_request(uint64_t id, std::mt19937_64& random,
                                      std::shared_ptr<const std::vector<int32_t>> prompt) {
    SampleRequest request;
    request.request_id = id;
    request.prompt_ids = std::move(prompt);
    request.sample_index = static_cast<int32_t>(id % 7);
    SamplingParams& sampling = request.sampling;
    sampling.temperature = 0.4f * static_cast<float>(random() % 4);
    sampling.top_p = random() % 2 == 0 ? 1.0f : 0.85f;
    sampling.top_k = random() % 3 == 0 ? 12 : 0;
    sampling.min_p = random() % 3 == 0 ? 0.02f : 0.0f;
    sampling.max_tokens = static_cast<int32_t>(1 + random() % 24);
    sampling.ignore_eos = random() % 4 != 0;
    if (random() % 4 == 0) sampling.stop_token_ids = {17, 20};
    sampling.seed = random();
    request.in_flight = static_cast<InFlightPolicy>(random() % 4);
    request.return_routes = random() % 2 == 0;
    return request;
  }

  // Of `count` samples of a mixed run, the records.
  static std::vector<Trajectory> mixed_run(size_t count, EngineStats& stats) {
    EngineConfig config;
    config.max_batch_tokens = 48;
    config.prefill_chunk_tokens = 6;
    config.max_running_sequences = 12;
    config.block_tokens = 4;
    config.num_blocks = 30;  // 12 sequences of up to 11 blocks
    auto core = std::move(EngineCore::create(real_parts(versions_[0], config))).value();
    std::mt19937_64 random(500);
    std::map<uint64_t, SampleRequest> requests;
    std::vector<Trajectory> records;
    std::shared_ptr<const std::vector<int32_t>> prompt;
    for (uint64_t step = 1; records.size() < count; ++step) {
      while (core->num_live() < 20) {
        if (requests.size() % 5 == 0) {
          std::vector<int32_t> ids(1 + random() % 20);
          for (int32_t& id : ids) id = static_cast<int32_t>(10 + random() % 20);
          prompt = std::make_shared<const std::vector<int32_t>>(std::move(ids));
        }
        const SampleRequest request = random_request(requests.size() + 1, random, prompt);
        EXPECT_TRUE(core->submit(request).ok());
        requests[request.request_id] = request;
      }
      if (step % 9 == 0) {
        EXPECT_TRUE(core->install_weights(versions_[random() % 3]).ok());
      }
      if (step % 50 == 0) {
        EXPECT_TRUE(core->release_pins(InFlightPolicy::kKeep).ok());
      }
      core->step(std::chrono::steady_clock::now());
      for (const GeneratedSample& sample : core->take_finished())
        records.push_back(record_of(requests.at(sample.request_id), sample));
    }
    stats = core->stats();
    return records;
  }

  static inline std::vector<WeightSetPtr> versions_;
};

TEST_F(Regenerate, FiveHundredSamplesOfAMixedRunComeOutBitForBit) {
  EngineStats stats;
  const std::vector<Trajectory> records = mixed_run(500, stats);
  ASSERT_GE(records.size(), 500u);
  EXPECT_GT(stats.num_preemptions, 20u);
  EXPECT_GT(stats.num_prompt_hits, 100u);
  EXPECT_GT(stats.num_flips, 20u);
  size_t num_events[3] = {0, 0, 0};
  for (const Trajectory& stored : records) {
    const auto made = regenerate(stored, lookup, cpu_runner(ActivationDtype::kF32));
    ASSERT_TRUE(made.ok()) << stored.trajectory_id << ": " << made.status().to_string();
    const auto& difference = made->first_difference;
    ASSERT_FALSE(difference.has_value())
        << stored.trajectory_id << " at " << difference->position << ", " << difference->field
        << ": stored " << difference->stored << ", regenerated " << difference->regenerated;
    for (const TrajectoryEvent& event : stored.events) ++num_events[static_cast<int>(event.kind)];
  }
  EXPECT_GT(num_events[static_cast<int>(EventKind::kFlipKeep)], 50u);
  EXPECT_GT(num_events[static_cast<int>(EventKind::kFlipRecompute)], 50u);
  EXPECT_GT(num_events[static_cast<int>(EventKind::kPreemptRecompute)], 10u);
}

// A record whose response is long enough to be tampered with, with routes and a kept flip.
TEST_F(Regenerate, NamesTheFirstDifference) {
  EngineConfig config;
  auto core = std::move(EngineCore::create(real_parts(versions_[0], config))).value();
  SampleRequest request;
  request.request_id = 1;
  request.prompt_ids = std::make_shared<const std::vector<int32_t>>(std::vector<int32_t>{15, 16});
  request.sampling.max_tokens = 12;
  request.sampling.ignore_eos = true;
  request.return_routes = true;
  ASSERT_TRUE(core->submit(request).ok());
  while (core->sequence_tokens(1) < 8) core->step(std::chrono::steady_clock::now());
  ASSERT_TRUE(core->install_weights(versions_[2]).ok());
  const Trajectory stored = record_of(request, run_all(*core).at(1));
  ASSERT_EQ(stored.events, (std::vector<TrajectoryEvent>{{8, EventKind::kFlipKeep, 3}}));

  const auto difference = [&](const Trajectory& record) {
    auto made = regenerate(record, lookup, cpu_runner(ActivationDtype::kF32));
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return made.ok() ? made->first_difference : std::nullopt;
  };
  EXPECT_FALSE(difference(stored).has_value());

  Trajectory changed = stored;
  changed.logprobs[5] = std::nextafter(changed.logprobs[5], -100.0f);
  ASSERT_TRUE(difference(changed).has_value());
  EXPECT_EQ(difference(changed)->position, 5);
  EXPECT_EQ(difference(changed)->field, "logprobs");

  changed = stored;
  changed.token_ids[7] = (changed.token_ids[7] + 1) % 200;
  EXPECT_EQ(difference(changed)->position, 7);
  EXPECT_EQ(difference(changed)->field, "token_ids");

  changed = stored;
  changed.routed_experts->data[2 * 6] ^= 1;  // position 2: 3 layers, top-2, one byte each
  EXPECT_EQ(difference(changed)->position, 2);
  EXPECT_EQ(difference(changed)->field, "routed_experts");

  changed = stored;  // the same flip, but said to have recomputed: the KV differs
  changed.events[0].kind = EventKind::kFlipRecompute;
  ASSERT_TRUE(difference(changed).has_value());
  EXPECT_GE(difference(changed)->position, 7);  // its routes, or the token they yield
  EXPECT_LE(difference(changed)->position, 8);

  changed = stored;
  changed.sampling.seed += 1;
  EXPECT_TRUE(difference(changed).has_value());
}

TEST_F(Regenerate, RefusesOtherWeightsAndOtherActivations) {
  EngineConfig config;
  auto core = std::move(EngineCore::create(real_parts(versions_[0], config))).value();
  SampleRequest request;
  request.request_id = 1;
  request.prompt_ids = std::make_shared<const std::vector<int32_t>>(std::vector<int32_t>{15, 16});
  request.sampling.max_tokens = 3;
  ASSERT_TRUE(core->submit(request).ok());
  const Trajectory stored = record_of(request, run_all(*core).at(1));
  const auto other = [](uint64_t, const Digest&) -> Result<WeightSetPtr> { return versions_[1]; };
  const auto wrong = regenerate(stored, other, cpu_runner(ActivationDtype::kF32));
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.status().message().find(to_hex(stored.version_digests[0].weight_digest)),
            std::string::npos);
  EXPECT_EQ(regenerate(stored, lookup, cpu_runner(ActivationDtype::kBf16)).status().code(),
            StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace warproll
