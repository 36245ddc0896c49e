// What a flip of the weights does to each sample, by its in-flight policy, over a fake model.
#include <gtest/gtest.h>

#include "rollout/engine/engine_core.h"
#include "tests/rollout/engine/fake_model.h"

namespace warproll {
namespace {

TEST(EngineCoreFlip, KeepRecordsTheTokenFromWhichTheNewWeightsCount) {
  FakeEngine engine;
  ASSERT_TRUE(engine.submit(fake_request(1, fake_prompt(5), 6)).ok());
  engine.step(3);
  ASSERT_EQ(*engine.core->install_weights(fake_weights(2)), 1);
  engine.run_to_end();
  EXPECT_EQ(engine.sample(1).events, (std::vector<TrajectoryEvent>{{8, EventKind::kFlipKeep, 2}}));
  EXPECT_EQ(engine.sample(1).weight_versions, (std::vector<uint64_t>{1, 1, 1, 2, 2, 2}));
  EXPECT_EQ(engine.model->forwarded_tokens, 5u + 5);  // nothing again
  engine.expect_replays(1);
}

TEST(EngineCoreFlip, RecomputeForwardsEverythingAgain) {
  FakeEngine engine;
  SampleRequest request = fake_request(1, fake_prompt(5), 6);
  request.in_flight = InFlightPolicy::kRecompute;
  ASSERT_TRUE(engine.submit(request).ok());
  engine.step(3);
  ASSERT_TRUE(engine.core->install_weights(fake_weights(2)).ok());
  engine.run_to_end();
  EXPECT_EQ(engine.sample(1).events,
            (std::vector<TrajectoryEvent>{{8, EventKind::kFlipRecompute, 2}}));
  EXPECT_EQ(engine.model->forwarded_tokens, 7u + 8 + 2);
  engine.expect_replays(1);
}

TEST(EngineCoreFlip, AFlipInTheMiddleOfARecomputePassRestartsIt) {
  for (int chunks_before = 1; chunks_before <= 3; ++chunks_before) {
    EngineConfig config = small_config();
    config.prefill_chunk_tokens = 3;
    FakeEngine engine(config);
    SampleRequest request = fake_request(1, fake_prompt(9), 6);
    request.in_flight = InFlightPolicy::kRecompute;
    ASSERT_TRUE(engine.submit(request).ok());
    engine.step(3);  // the first token: 10 are known
    ASSERT_EQ(engine.core->sequence_tokens(1), 10);
    ASSERT_TRUE(engine.core->install_weights(fake_weights(2)).ok());
    engine.step(chunks_before);  // of the 4 that the pass takes
    ASSERT_TRUE(engine.core->install_weights(fake_weights(3)).ok());
    engine.run_to_end();
    EXPECT_EQ(engine.sample(1).events,
              (std::vector<TrajectoryEvent>{{10, EventKind::kFlipRecompute, 3}}));
    EXPECT_EQ(engine.sample(1).version_digests.size(), 2u);  // 1 and 3: 2 made nothing
    engine.expect_replays(1);
  }
}

TEST(EngineCoreFlip, AbortReturnsThePartialSample) {
  FakeEngine engine;
  SampleRequest request = fake_request(1, fake_prompt(5), 6);
  request.in_flight = InFlightPolicy::kAbort;
  ASSERT_TRUE(engine.submit(request).ok());
  engine.step(3);
  ASSERT_TRUE(engine.core->install_weights(fake_weights(2)).ok());
  engine.collect();
  EXPECT_EQ(engine.sample(1).finish_reason, FinishReason::kAbort);
  EXPECT_EQ(engine.sample(1).error_type, "weights_changed");
  EXPECT_EQ(engine.sample(1).token_ids.size(), 3u);
  engine.expect_replays(1);
}

TEST(EngineCoreFlip, ASampleWithoutATokenIsPrefilledUnderTheNewWeightsWithoutAnEvent) {
  for (const auto policy :
       {InFlightPolicy::kKeep, InFlightPolicy::kRecompute, InFlightPolicy::kAbort}) {
    FakeEngine engine;
    SampleRequest request = fake_request(1, fake_prompt(20), 4);
    request.in_flight = policy;
    ASSERT_TRUE(engine.submit(request).ok());
    engine.step(2);  // 16 of 20 prompt tokens
    ASSERT_TRUE(engine.core->install_weights(fake_weights(2)).ok());
    engine.run_to_end();
    EXPECT_TRUE(engine.sample(1).events.empty());
    EXPECT_EQ(engine.sample(1).weight_versions, (std::vector<uint64_t>(4, 2)));
    engine.expect_replays(1);
  }
}

TEST(EngineCoreFlip, PinKeepsItsWeightsFromItsFirstPrefillOnAndThenLetsThemGo) {
  FakeEngine engine;
  const std::weak_ptr<const WeightSet> old = engine.core->weights();
  const auto prompt = fake_prompt(20);
  SampleRequest request = fake_request(1, prompt, 10);
  request.in_flight = InFlightPolicy::kPin;
  ASSERT_TRUE(engine.submit(request).ok());
  engine.step();  // a part of its prompt
  ASSERT_TRUE(engine.core->install_weights(fake_weights(2)).ok());
  EXPECT_EQ(engine.core->pinned_sequences(), 1);
  request.request_id = 2;  // the same group, later: under the current version
  ASSERT_TRUE(engine.submit(request).ok());
  engine.step(4);
  EXPECT_GT(engine.core->stats().num_forward_passes, engine.core->stats().num_steps);
  EXPECT_FALSE(old.expired());
  engine.core->abort(1, "cancelled", "");
  engine.collect();
  EXPECT_TRUE(old.expired()) << "the engine holds weights that nothing runs under";
  EXPECT_EQ(engine.core->pinned_sequences(), 0);
  engine.run_to_end();
  EXPECT_EQ(engine.sample(1).version_digests.front().weight_version, 1u);
  EXPECT_EQ(engine.sample(2).weight_versions, (std::vector<uint64_t>(10, 2)));
  EXPECT_EQ(engine.core->stats().num_prompt_hits, 0u) << "a prompt hit crossed versions";
  engine.expect_replays(1);
  engine.expect_replays(2);
}

// W5. A prompt prefilled under the old weights is nothing to those that start under the new ones,
// even while pinned samples of the same group go on from it.
TEST(EngineCoreFlip, APrefilledPromptIsNotSharedAcrossVersions) {
  EngineConfig config = small_config();
  config.max_running_sequences = 2;
  FakeEngine engine(config);
  const auto prompt = fake_prompt(21);
  for (uint64_t id = 1; id <= 4; ++id) {
    SampleRequest request = fake_request(id, prompt, 6);
    request.in_flight = InFlightPolicy::kPin;
    ASSERT_TRUE(engine.submit(request).ok());
  }
  while (engine.core->sequence_tokens(1) < 23 || engine.core->sequence_tokens(2) < 23)
    engine.step();
  const uint64_t forwarded = engine.model->forwarded_tokens;
  const auto still_to_sample = static_cast<uint64_t>(
      2 * (21 + 6) - engine.core->sequence_tokens(1) - engine.core->sequence_tokens(2));
  EXPECT_EQ(engine.core->stats().num_prompt_hits, 1u);
  ASSERT_TRUE(engine.core->install_weights(fake_weights(2)).ok());
  engine.run_to_end();
  for (const uint64_t id : {1, 2}) EXPECT_EQ(engine.sample(id).weight_versions.back(), 1u);
  for (const uint64_t id : {3, 4}) EXPECT_EQ(engine.sample(id).weight_versions.front(), 2u);
  // 3 prefills the prompt anew, 4 shares that: one more hit, 20 prompt positions forwarded again.
  EXPECT_EQ(engine.core->stats().num_prompt_hits, 2u);
  EXPECT_EQ(engine.model->forwarded_tokens - forwarded, 20 + 2 * 6 + still_to_sample);
  for (uint64_t id = 1; id <= 4; ++id) engine.expect_replays(id);
}

TEST(EngineCoreFlip, ReleasedPinsFollowTheFallback) {
  FakeEngine engine;
  SampleRequest request = fake_request(1, fake_prompt(5), 8);
  request.in_flight = InFlightPolicy::kPin;
  ASSERT_TRUE(engine.submit(request).ok());
  engine.step(3);
  const std::weak_ptr<const WeightSet> old = engine.core->weights();
  ASSERT_TRUE(engine.core->install_weights(fake_weights(2)).ok());
  engine.step(2);
  EXPECT_FALSE(engine.core->release_pins(InFlightPolicy::kPin).ok());
  EXPECT_EQ(*engine.core->release_pins(InFlightPolicy::kRecompute), 1);
  EXPECT_TRUE(old.expired());
  engine.run_to_end();
  EXPECT_EQ(engine.sample(1).events,
            (std::vector<TrajectoryEvent>{{10, EventKind::kFlipRecompute, 2}}));
  engine.expect_replays(1);
}

// Each policy by turns, always with more waiting than the engine takes.
TEST(EngineCoreFlip, AThousandFlipsWithAWaitingQueueLoseNothing) {
  constexpr uint64_t kFlips = 1000;
  FakeEngine engine;
  uint64_t next_id = 1;
  for (uint64_t version = 2; version <= 1 + kFlips; ++version) {
    while (engine.core->num_live() < 20) {
      const auto prompt = fake_prompt(3 + static_cast<int32_t>(next_id % 11), next_id);
      for (int i = 0; i < 3; ++i) {
        SampleRequest request = fake_request(next_id, prompt, 6);
        request.in_flight = static_cast<InFlightPolicy>(next_id++ % 4);
        ASSERT_TRUE(engine.submit(request).ok());
      }
    }
    engine.step(1 + static_cast<int>(version % 3));
    ASSERT_GT(engine.core->stats().waiting_sequences, 0) << "before version " << version;
    ASSERT_TRUE(engine.core->install_weights(fake_weights(version)).ok());
  }
  engine.run_to_end();
  EXPECT_EQ(engine.core->stats().num_flips, kFlips);
  EXPECT_EQ(engine.core->stats().free_blocks, engine.core->stats().total_blocks);
  EXPECT_EQ(engine.samples.size(), next_id - 1);
  for (uint64_t id = 1; id < next_id; ++id) {
    engine.expect_replays(id);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(EngineCoreFlip, WeightsOfAnotherShapeAreRefused) {
  FakeEngine engine;
  auto other = std::make_shared<WeightSet>(*fake_weights(2));
  other->config.vocab_size = 41;
  EXPECT_EQ(engine.core->install_weights(other).status().message(),
            "weights to install: vocab_size is 41, wanted 40 as the engine's model");
  EXPECT_FALSE(engine.core->install_weights(nullptr).ok());
  EXPECT_EQ(engine.core->weights()->weight_version, 1u);
}

}  // namespace
}  // namespace warproll
