// EngineCore over a fake model, one behaviour a test. What the numbers are is the oracle's affair
// (property_test.cpp); here it is when things happen and what is refused.
#include "rollout/engine/engine_core.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/rollout/engine/fake_model.h"

namespace warproll {
namespace {

TEST(EngineConfigCheck, ErrorsNameTheKeyTheValueAndTheWantedOne) {
  EngineConfig config;
  config.max_batch_tokens = 3;
  config.max_running_sequences = 4;
  EXPECT_EQ(validate(config, fake_config()).message(),
            "engine: max_batch_tokens is 3, wanted at least 4");
  config = {};
  config.max_context_tokens = 1000;
  EXPECT_NE(validate(config, fake_config()).message().find("1000, wanted at most the 256"),
            std::string::npos);
}

TEST(EngineCoreSubmit, RefusesBadRequestsWithTheValues) {
  FakeEngine engine;
  const auto message = [&](const SampleRequest& request) {
    return engine.core->submit(request).message();
  };
  SampleRequest request = fake_request(1, fake_prompt(0));
  EXPECT_EQ(message(request), "request 1: the prompt has 0 tokens, wanted at least 1");
  request = fake_request(1, nullptr);
  EXPECT_EQ(message(request), "request 1: the prompt has 0 tokens, wanted at least 1");
  request = fake_request(1, fake_prompt(256));
  EXPECT_EQ(message(request),
            "request 1: the prompt has 256 tokens, wanted fewer than the context of 256");
  request = fake_request(
      1, std::make_shared<const std::vector<int32_t>>(std::vector<int32_t>{3, kFakeVocab}));
  EXPECT_EQ(message(request), "request 1: prompt token 1 is 40, wanted [0, 40)");
  request = fake_request(1, fake_prompt(4));
  request.sampling.temperature = -1.0f;
  EXPECT_NE(message(request).find("temperature"), std::string::npos);
  request = fake_request(1, fake_prompt(4));
  request.sampling.stop_strings = {"x"};
  EXPECT_EQ(message(request),
            "request 1: 1 stop strings, wanted none: the engine has no tokenizer");
  request = fake_request(1, fake_prompt(4));
  request.sample_index = -1;
  EXPECT_EQ(message(request), "request 1: sample_index is -1, wanted >= 0");
  EXPECT_EQ(engine.core->num_live(), 0u);
}

TEST(EngineCoreSubmit, RefusesARequestThatCanNeverFit) {
  EngineConfig config = small_config();
  config.num_blocks = 5;  // of 4 tokens
  FakeEngine engine(config);
  const Status status = engine.core->submit(fake_request(1, fake_prompt(12), 10));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("need 6 KV blocks of 4 tokens, the engine has 5"),
            std::string::npos);
  EXPECT_TRUE(engine.submit(fake_request(2, fake_prompt(12), 9)).ok());
  engine.run_to_end();
  EXPECT_EQ(engine.sample(2).token_ids.size(), 9u);
}

TEST(EngineCoreSubmit, RefusesALiveRequestIdTwice) {
  FakeEngine engine;
  ASSERT_TRUE(engine.submit(fake_request(1, fake_prompt(4))).ok());
  EXPECT_EQ(engine.core->submit(fake_request(1, fake_prompt(4))).code(),
            StatusCode::kAlreadyExists);
}

TEST(EngineCoreEnd, MaxTokensAndTheContextEndASampleAsLength) {
  FakeEngine engine;
  ASSERT_TRUE(engine.submit(fake_request(1, fake_prompt(4), 5)).ok());
  ASSERT_TRUE(engine.submit(fake_request(2, fake_prompt(250), 100)).ok());
  engine.run_to_end();
  EXPECT_EQ(engine.sample(1).token_ids.size(), 5u);
  EXPECT_EQ(engine.sample(1).finish_reason, FinishReason::kLength);
  EXPECT_EQ(engine.sample(2).token_ids.size(), 6u);  // 256 positions in all
  EXPECT_EQ(engine.sample(2).finish_reason, FinishReason::kLength);
}

TEST(EngineCoreEnd, EosAndStopIdsEndASampleAndAreKept) {
  FakeEngine engine;
  SampleRequest request = fake_request(1, fake_prompt(4), 200);
  request.sampling.ignore_eos = false;
  ASSERT_TRUE(engine.submit(request).ok());
  request.request_id = 2;
  request.sampling.ignore_eos = true;
  request.sampling.stop_token_ids = {7, 9};
  ASSERT_TRUE(engine.submit(request).ok());
  engine.run_to_end();
  EXPECT_EQ(engine.sample(1).token_ids.back(), kFakeEos);
  EXPECT_EQ(engine.sample(1).finish_reason, FinishReason::kStop);
  const std::vector<int32_t>& ids = engine.sample(2).token_ids;
  EXPECT_TRUE(ids.back() == 7 || ids.back() == 9);
  EXPECT_EQ(engine.sample(2).finish_reason, FinishReason::kStop);
  EXPECT_EQ(std::count_if(ids.begin(), ids.end(), [](int32_t id) { return id == 7 || id == 9; }),
            1);
}

TEST(EngineCoreEnd, CancelReturnsWhatThereIs) {
  FakeEngine engine;
  ASSERT_TRUE(engine.submit(fake_request(1, fake_prompt(4), 100)).ok());
  engine.step(5);
  engine.core->abort(1, "cancelled", "not wanted any more");
  engine.core->abort(99, "cancelled", "unknown");
  engine.collect();
  EXPECT_EQ(engine.sample(1).finish_reason, FinishReason::kAbort);
  EXPECT_EQ(engine.sample(1).error_type, "cancelled");
  EXPECT_EQ(engine.sample(1).error_message, "not wanted any more");
  EXPECT_EQ(engine.sample(1).token_ids.size(), 5u);
  engine.expect_replays(1);
  EXPECT_EQ(engine.core->stats().free_blocks, 64);
}

TEST(EngineCoreEnd, ADeadlineEndsRunningAndWaitingSamplesAsAbort) {
  EngineConfig config = small_config();
  config.max_running_sequences = 1;
  FakeEngine engine(config);
  const auto now = std::chrono::steady_clock::now();
  for (const uint64_t id : {1, 2}) {
    SampleRequest request = fake_request(id, fake_prompt(4), 100);
    request.deadline_ns =
        std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count() +
        1000000;
    ASSERT_TRUE(engine.submit(request).ok());
  }
  EXPECT_TRUE(engine.core->step(now));
  EXPECT_FALSE(engine.core->step(now + std::chrono::milliseconds(2)));
  engine.collect();
  EXPECT_EQ(engine.sample(1).error_type, "deadline");
  EXPECT_EQ(engine.sample(1).token_ids.size(), 1u);
  EXPECT_EQ(engine.sample(2).error_type, "deadline");
  EXPECT_TRUE(engine.sample(2).token_ids.empty());
  EXPECT_FALSE(engine.sample(2).routed_experts.has_value());
}

TEST(EngineCoreEnd, LogitsThatAreNoNumbersEndTheirSampleOnly) {
  EngineConfig config = small_config();
  auto model = std::make_shared<FakeModel>(config);
  EngineParts parts;
  parts.config = config;
  parts.backend = fake_backend(model);
  const auto forward = parts.backend.forward;
  parts.backend.forward = [forward](const ForwardBatch& batch, const WeightSet& weights,
                                    ForwardOutput& out) {
    forward(batch, weights, out);
    out.logits[3] = std::numeric_limits<float>::quiet_NaN();  // of the first sequence
  };
  parts.weights = fake_weights(1);
  auto core = std::move(EngineCore::create(std::move(parts))).value();
  ASSERT_TRUE(core->submit(fake_request(1, fake_prompt(1))).ok());
  ASSERT_TRUE(core->submit(fake_request(2, fake_prompt(1))).ok());
  core->step(std::chrono::steady_clock::now());
  const auto finished = core->take_finished();
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].request_id, 1u);
  EXPECT_EQ(finished[0].finish_reason, FinishReason::kError);
  EXPECT_EQ(finished[0].error_type, "non_finite_logits");
  EXPECT_EQ(core->sequence_tokens(2), 2);
}

TEST(EngineCorePrompts, AGroupForwardsItsPromptOnce) {
  FakeEngine engine;
  const auto prompt = fake_prompt(21);  // five full blocks of 4 and the last token
  for (uint64_t id = 1; id <= 6; ++id) ASSERT_TRUE(engine.submit(fake_request(id, prompt, 3)).ok());
  engine.run_to_end();
  EXPECT_EQ(engine.core->stats().num_prompt_hits, 5u);
  EXPECT_EQ(engine.model->forwarded_tokens, 20u + 6 * 3);
  EXPECT_EQ(engine.model->copied_blocks, 0u);
  EXPECT_EQ(engine.core->stats().free_blocks, 64);
  for (uint64_t id = 1; id <= 6; ++id) engine.expect_replays(id);
}

TEST(EngineCorePrompts, APartialBlockIsCopiedBeforeItIsWritten) {
  FakeEngine engine;
  const auto prompt = fake_prompt(23);
  for (uint64_t id = 1; id <= 6; ++id) ASSERT_TRUE(engine.submit(fake_request(id, prompt, 3)).ok());
  engine.run_to_end();
  EXPECT_EQ(engine.core->stats().num_prompt_hits, 5u);
  EXPECT_GE(engine.model->copied_blocks, 5u);
  for (uint64_t id = 1; id <= 6; ++id) engine.expect_replays(id);
}

TEST(EngineCorePrompts, EqualPromptsOfOtherGroupsAreNotShared) {
  FakeEngine engine;
  ASSERT_TRUE(engine.submit(fake_request(1, fake_prompt(21), 3)).ok());
  ASSERT_TRUE(engine.submit(fake_request(2, fake_prompt(21), 3)).ok());
  engine.run_to_end();
  EXPECT_EQ(engine.core->stats().num_prompt_hits, 0u);
}

TEST(EngineCorePrompts, AWaitingSampleTakesOverWhenTheLeaderIsCancelled) {
  FakeEngine engine;
  const auto prompt = fake_prompt(30);
  ASSERT_TRUE(engine.submit(fake_request(1, prompt, 3)).ok());
  ASSERT_TRUE(engine.submit(fake_request(2, prompt, 3)).ok());
  ASSERT_TRUE(engine.submit(fake_request(3, prompt, 3)).ok());
  engine.step();
  engine.core->abort(1, "cancelled", "");
  engine.run_to_end();
  EXPECT_EQ(engine.core->stats().num_prompt_hits, 1u);
  engine.expect_replays(2);
  engine.expect_replays(3);
}

TEST(EngineCorePreemption, TheLatestAdmittedIsPreemptedAndKeepsItsTokens) {
  EngineConfig config = small_config();
  config.num_blocks = 8;
  FakeEngine engine(config);
  ASSERT_TRUE(engine.submit(fake_request(1, fake_prompt(8, 1), 20)).ok());
  ASSERT_TRUE(engine.submit(fake_request(2, fake_prompt(8, 2), 20)).ok());
  engine.run_to_end();
  EXPECT_TRUE(engine.sample(1).events.empty());
  ASSERT_EQ(engine.sample(2).events.size(), 1u);
  EXPECT_EQ(engine.sample(2).events[0].kind, EventKind::kPreemptRecompute);
  EXPECT_EQ(engine.core->stats().num_preemptions, 1u);
  engine.expect_replays(1);
  engine.expect_replays(2);
}

}  // namespace
}  // namespace warproll
