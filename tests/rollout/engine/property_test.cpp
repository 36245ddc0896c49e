// Random submits, cancels, flips, releases and deadlines against a fake model: every sample comes out
// exactly once and is what an oracle computes from its record; no block and no weight set leaks.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/rollout/engine/fake_model.h"

namespace warproll {
namespace {

struct Counts {
  int submitted = 0, flips = 0, releases = 0, spanned = 0, preempted = 0, aborted = 0, hits = 0;
  uint64_t fed = 0;  // steps launched before the tokens of the one before were known
};

class RandomRun {
 public:
  RandomRun(uint64_t seed, bool overlap) : random_(seed), engine_(random_config(), 1, overlap) {
    versions_.push_back(engine_.core->weights());
  }

  void run(Counts& counts) {
    for (int i = 0; i < 600; ++i) {
      act();
      if (::testing::Test::HasFatalFailure()) return;
    }
    engine_.run_to_end();
    check(counts);
  }

 private:
  int below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }

  EngineConfig random_config() {
    EngineConfig config;
    config.block_tokens = 1 + below(6);
    config.max_running_sequences = 1 + below(10);
    config.max_batch_tokens = config.max_running_sequences + below(20);
    config.prefill_chunk_tokens = 1 + below(12);
    config.max_context_tokens = 60;
    config.num_blocks = 60 / config.block_tokens + 1 + below(40);
    config.share_prompts = below(4) != 0;
    return config;
  }

  void act() {
    const int choice = below(100);
    if (choice < 12) {
      submit_group();
    } else if (choice < 15) {
      cancel();
    } else if (choice < 19) {
      flip();
    } else if (choice < 20) {
      release();
    } else {
      engine_.step();
    }
  }

  void submit_group() {
    const auto prompt = fake_prompt(1 + below(40), random_());
    const auto policy = static_cast<InFlightPolicy>(below(4));
    const bool return_routes = below(2) == 0;
    for (int i = 1 + below(6); i-- > 0;) {
      SampleRequest request = fake_request(next_id_++, prompt, 1 + below(30));
      request.sampling.ignore_eos = below(2) == 0;
      request.sampling.temperature = static_cast<float>(below(4)) * 0.5f;
      request.sampling.top_p = below(2) == 0 ? 1.0f : 0.8f;
      request.sampling.top_k = below(2) * 10;
      request.in_flight = policy;
      request.return_routes = below(8) == 0 ? !return_routes : return_routes;
      if (below(40) == 0) request.deadline_ns = 1;  // long past
      const Status status = engine_.submit(request);
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
  }
  void cancel() {
    engine_.core->abort(1 + random_() % next_id_, "cancelled", "by the test");
    engine_.collect();
  }
  void flip() {
    // Sometimes back to an older version, or to the very same object.
    WeightSetPtr next = below(3) == 0 ? versions_[random_() % versions_.size()]
                                      : fake_weights(versions_.size() + 1);
    if (next->weight_version > versions_.size()) versions_.push_back(next);
    ASSERT_TRUE(engine_.core->install_weights(next).ok());
    engine_.collect();
  }
  void release() {
    const auto fallback = static_cast<InFlightPolicy>(below(3));
    const int32_t pinned = engine_.core->pinned_sequences();
    const auto released = engine_.core->release_pins(fallback);
    ASSERT_TRUE(released.ok());
    EXPECT_EQ(*released, pinned);
    EXPECT_EQ(engine_.core->pinned_sequences(), 0);
    ++releases_;
    engine_.collect();
  }

  void check(Counts& counts) {
    const EngineStats stats = engine_.core->stats();
    EXPECT_EQ(stats.free_blocks, stats.total_blocks) << "blocks leaked";
    EXPECT_EQ(stats.running_sequences + stats.waiting_sequences, 0);
    EXPECT_EQ(engine_.samples.size(), engine_.requests.size());
    for (const auto& [request_id, sample] : engine_.samples) {
      engine_.expect_replays(request_id);
      if (::testing::Test::HasFatalFailure()) return;
      std::set<uint64_t> digests;
      for (const VersionDigest& digest : sample.version_digests)
        EXPECT_TRUE(digests.insert(digest.weight_version).second);
      for (const uint64_t version : sample.weight_versions) EXPECT_TRUE(digests.contains(version));
      for (const auto& event : sample.events) EXPECT_TRUE(digests.contains(event.weight_version));
      counts.spanned += sample.version_digests.size() > 1 ? 1 : 0;
      counts.aborted += sample.finish_reason == FinishReason::kAbort ? 1 : 0;
    }
    for (const WeightSetPtr& weights : versions_) {
      const long owners = weights == engine_.core->weights() ? 2 : 1;
      EXPECT_EQ(weights.use_count(), owners) << "version " << weights->weight_version << " is held";
    }
    if (engine_.overlapping_steps) counts.fed += engine_.overlapping_steps->num_fed;
    counts.submitted += static_cast<int>(engine_.samples.size());
    counts.flips += static_cast<int>(stats.num_flips);
    counts.releases += releases_;
    counts.preempted += static_cast<int>(stats.num_preemptions);
    counts.hits += static_cast<int>(stats.num_prompt_hits);
  }

  std::mt19937_64 random_;
  FakeEngine engine_;
  std::vector<WeightSetPtr> versions_;
  uint64_t next_id_ = 1;
  int releases_ = 0;
};

class EngineProperties : public ::testing::TestWithParam<bool> {};

TEST_P(EngineProperties, RandomRunsLoseNothingAndMatchTheOracle) {
  Counts counts;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun(seed, GetParam()).run(counts);
    if (HasFailure()) return;
  }
  // The runs did meet what they are about.
  EXPECT_GT(counts.submitted, 10000);
  EXPECT_GT(counts.flips, 1000);
  EXPECT_GT(counts.releases, 100);
  EXPECT_GT(counts.spanned, 1000);
  EXPECT_GT(counts.preempted, 1000);
  EXPECT_GT(counts.aborted, 500);
  EXPECT_GT(counts.hits, 1000);
  if (GetParam()) {
    EXPECT_GT(counts.fed, 1000u);
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, EngineProperties, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "overlapping" : "whole"; });

}  // namespace
}  // namespace warproll
