// 100 weight flips under load for each in-flight policy, on the real forward with arith v1..v3: the
// queue is never empty and at least half of the sequences span a flip, both counted.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "rollout/engine/score.h"
#include "tests/rollout/engine/real_model.h"

namespace warproll {
namespace {

constexpr int kFlips = 100;
constexpr float kLogprobTolerance = 1e-4f;

struct Load {
  std::map<uint64_t, SampleRequest> requests;
  std::map<uint64_t, GeneratedSample> samples;
  std::set<uint64_t> met_flip;  // had sampled something and had not ended when the weights flipped
};

// Keeps more waiting and running than the engine can take, and flips every few steps.
class FlipRun {
 public:
  FlipRun(const std::vector<WeightSetPtr>& versions, InFlightPolicy policy)
      : versions_(versions), policy_(policy), random_(static_cast<uint64_t>(policy) + 1) {
    EngineConfig config;
    config.max_batch_tokens = 32;
    config.prefill_chunk_tokens = 8;
    config.max_running_sequences = 8;
    config.block_tokens = 8;
    config.num_blocks = 40;
    core_ = std::move(EngineCore::create(real_parts(versions[0], config))).value();
  }

  Load run() {
    for (int flip = 1; flip <= kFlips; ++flip) {
      const int steps = 4 + static_cast<int>(random_() % 8);
      for (int i = 0; i < steps; ++i) {
        fill();
        EXPECT_GT(core_->stats().waiting_sequences, 0) << "the queue is empty";
        core_->step(std::chrono::steady_clock::now());
        collect();
      }
      const auto& next = versions_[static_cast<size_t>(flip) % versions_.size()];
      EXPECT_GT(core_->stats().running_sequences, 0);
      for (const auto& [id, request] : load_.requests) {
        if (core_->sequence_tokens(id) > static_cast<int32_t>(request.prompt_ids->size()))
          load_.met_flip.insert(id);
      }
      EXPECT_TRUE(core_->install_weights(next).ok());
      collect();
    }
    for (const auto& [request_id, sample] : run_all(*core_)) load_.samples[request_id] = sample;
    EXPECT_EQ(core_->stats().num_flips, static_cast<uint64_t>(kFlips));
    EXPECT_EQ(core_->stats().free_blocks, core_->stats().total_blocks);
    return std::move(load_);
  }

 private:
  void fill() {
    while (core_->num_live() < 14) {
      SampleRequest request;
      if (group_left_ == 0) {
        std::vector<int32_t> ids;
        for (size_t i = 4 + random_() % 12; i-- > 0;)
          ids.push_back(static_cast<int32_t>(15 + random_() % 10));
        prompt_ = std::make_shared<const std::vector<int32_t>>(std::move(ids));
        group_left_ = 4;
      }
      request.request_id = next_id_++;
      request.prompt_ids = prompt_;
      request.sample_index = --group_left_;
      request.sampling.max_tokens = 20;
      request.sampling.ignore_eos = true;
      request.sampling.temperature = 0.5f + 0.5f * static_cast<float>(random_() % 3);
      request.sampling.top_p = random_() % 2 == 0 ? 1.0f : 0.9f;
      request.sampling.seed = random_();
      request.in_flight = policy_;
      request.return_routes = true;
      EXPECT_TRUE(core_->submit(request).ok());
      load_.requests[request.request_id] = std::move(request);
    }
  }
  void collect() {
    for (GeneratedSample& sample : core_->take_finished()) {
      const uint64_t request_id = sample.request_id;
      EXPECT_TRUE(load_.samples.emplace(request_id, std::move(sample)).second);
    }
  }

  const std::vector<WeightSetPtr>& versions_;
  const InFlightPolicy policy_;
  std::mt19937_64 random_;
  std::unique_ptr<EngineCore> core_;
  std::shared_ptr<const std::vector<int32_t>> prompt_;
  int32_t group_left_ = 0;
  uint64_t next_id_ = 1;
  Load load_;
};

class Flips : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { versions_ = load_arith(); }
  static void TearDownTestSuite() { versions_.clear(); }
  static Load run(InFlightPolicy policy) {
    Load load = FlipRun(versions_, policy).run();
    EXPECT_EQ(load.samples.size(), load.requests.size()) << "each sample exactly once";
    EXPECT_GT(load.samples.size(), 100u);
    EXPECT_GE(2 * load.met_flip.size(), load.samples.size()) << "too few span a flip";
    return load;
  }
  // Each token's logprob is what a clean forward of the whole text under its version gives.
  static void expect_clean_forward_agrees(const SampleRequest& request,
                                          const GeneratedSample& sample) {
    std::vector<int32_t> tokens = *request.prompt_ids;
    const auto prompt_len = static_cast<int32_t>(tokens.size());
    tokens.insert(tokens.end(), sample.token_ids.begin(), sample.token_ids.end());
    for (const VersionDigest& version : sample.version_digests) {
      const auto scores =
          score_tokens(*versions_[version.weight_version - 1], cpu_runner(ActivationDtype::kF32),
                       tokens, prompt_len, request.sampling);
      ASSERT_TRUE(scores.ok()) << scores.status().to_string();
      for (size_t i = 0; i < sample.token_ids.size(); ++i) {
        if (sample.weight_versions[i] != version.weight_version) continue;
        ASSERT_NEAR(sample.logprobs[i], (*scores)[i].logprob, kLogprobTolerance);
        ASSERT_NEAR(sample.raw_logprobs[i], (*scores)[i].raw_logprob, kLogprobTolerance);
        ASSERT_NEAR(sample.support_logmass[i], (*scores)[i].support_logmass, kLogprobTolerance);
      }
    }
  }
  static size_t num_spanning(const Load& load) {
    size_t spanning = 0;
    for (const auto& [id, sample] : load.samples) {
      const auto& versions = sample.weight_versions;
      spanning += !versions.empty() && versions.front() != versions.back() ? 1 : 0;
    }
    return spanning;
  }

  static inline std::vector<WeightSetPtr> versions_;
};

TEST_F(Flips, RecomputeGivesTheLogprobsOfACleanForward) {
  const Load load = run(InFlightPolicy::kRecompute);
  EXPECT_GE(2 * num_spanning(load), load.samples.size()) << "too few span a flip";
  RealReplay replay(versions_, 64);
  for (const auto& [id, sample] : load.samples) {
    expect_clean_forward_agrees(load.requests.at(id), sample);
    expect_record_replays(load.requests.at(id), sample, replay);
    if (HasFatalFailure()) return;
  }
}

TEST_F(Flips, KeepIsWhatAReplayOfItsEventsGives) {
  const Load load = run(InFlightPolicy::kKeep);
  EXPECT_GE(2 * num_spanning(load), load.samples.size()) << "too few span a flip";
  RealReplay replay(versions_, 64);
  for (const auto& [id, sample] : load.samples) {
    EXPECT_EQ(sample.finish_reason, FinishReason::kLength);
    expect_record_replays(load.requests.at(id), sample, replay);
    if (HasFatalFailure()) return;
  }
}

TEST_F(Flips, PinFinishesUnderTheVersionItStartedWith) {
  const Load load = run(InFlightPolicy::kPin);
  RealReplay replay(versions_, 64);
  std::set<uint64_t> met;
  for (const auto& [id, sample] : load.samples) {
    ASSERT_EQ(sample.version_digests.size(), 1u);
    met.insert(sample.weight_versions.front());
    expect_clean_forward_agrees(load.requests.at(id), sample);
    expect_record_replays(load.requests.at(id), sample, replay);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(met.size(), 3u);
}

TEST_F(Flips, AbortReturnsWhatItHasOfOneVersion) {
  const Load load = run(InFlightPolicy::kAbort);
  size_t num_aborted = 0;
  for (const auto& [id, sample] : load.samples) {
    if (sample.finish_reason == FinishReason::kAbort) {
      ++num_aborted;
      EXPECT_EQ(sample.error_type, "weights_changed");
      EXPECT_GE(sample.token_ids.size(), 1u);
    }
    ASSERT_EQ(sample.version_digests.size(), 1u);
    expect_clean_forward_agrees(load.requests.at(id), sample);
    if (HasFatalFailure()) return;
  }
  EXPECT_GE(2 * num_aborted, load.samples.size()) << "too few met a flip";
}

}  // namespace
}  // namespace warproll
