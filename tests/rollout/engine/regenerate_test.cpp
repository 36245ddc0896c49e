// Stored samples of a mixed run (policies, sampling parameters, flips, preemptions, shared prompts)
// are made again bit for bit from their records alone.
#include "rollout/engine/regenerate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/rollout/engine/mixed_run.h"
#include "tests/rollout/engine/overlapping.h"
#include "tests/rollout/engine/real_model.h"

namespace warproll {
namespace {

class Regenerate : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { versions_ = load_arith(); }
  static void TearDownTestSuite() { versions_.clear(); }
  static Result<WeightSetPtr> lookup(uint64_t version, const Digest&) {
    if (version < 1 || version > 3) return not_found("version " + std::to_string(version));
    return versions_[version - 1];
  }

  static ModelRunner runner(bool overlap) {
    ModelRunner runner = cpu_runner(ActivationDtype::kF32);
    if (overlap) {
      runner.make_backend = [make = runner.make_backend](const ModelConfig& config,
                                                         const BackendSizes& sizes) {
        return overlapping(make(config, sizes));
      };
    }
    return runner;
  }
  static std::vector<Trajectory> mixed_run(size_t count, EngineStats& stats, bool overlap = false) {
    return testing::mixed_run(versions_, runner(overlap), count, stats);
  }

  static inline std::vector<WeightSetPtr> versions_;
};

class RegenerateSteps : public Regenerate, public ::testing::WithParamInterface<bool> {};

TEST_P(RegenerateSteps, FiveHundredSamplesOfAMixedRunComeOutBitForBit) {
  EngineStats stats;
  const std::vector<Trajectory> records = mixed_run(500, stats, GetParam());
  ASSERT_GE(records.size(), 500u);
  EXPECT_GT(stats.num_preemptions, 20u);
  EXPECT_GT(stats.num_prompt_hits, 100u);
  EXPECT_GT(stats.num_flips, 20u);
  size_t num_events[3] = {0, 0, 0};
  for (const Trajectory& stored : records) {
    const auto made = regenerate(stored, lookup, runner(GetParam()));
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

INSTANTIATE_TEST_SUITE_P(Steps, RegenerateSteps, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "overlapping" : "whole"; });

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
  const Trajectory stored = testing::record_of(request, run_all(*core).at(1));
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
  const Trajectory stored = testing::record_of(request, run_all(*core).at(1));
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
