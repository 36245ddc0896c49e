// A sample's bits do not depend on its batch, the chunk size, preemption or prefix sharing.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "tests/rollout/engine/real_model.h"

namespace warproll {
namespace {

std::shared_ptr<const std::vector<int32_t>> random_prompt(uint64_t seed, int32_t length,
                                                          int32_t vocab_size) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(length));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size));
  return std::make_shared<const std::vector<int32_t>>(std::move(ids));
}

constexpr uint64_t kSubject = 1;

SampleRequest subject(const ModelConfig& config) {
  SampleRequest request;
  request.request_id = kSubject;
  request.prompt_ids = random_prompt(1, 70, config.vocab_size);
  request.sample_index = 3;
  request.sampling.temperature = 0.8f;
  request.sampling.top_p = 0.95f;
  request.sampling.max_tokens = 40;
  request.sampling.ignore_eos = true;
  request.sampling.seed = 0x123456789abcdefULL;
  request.return_routes = true;
  return request;
}

SampleRequest neighbour(const ModelConfig& config, uint64_t id) {
  SampleRequest request = subject(config);
  request.request_id = 100 + id;
  request.prompt_ids = random_prompt(100 + id, static_cast<int32_t>(1 + id * 3), config.vocab_size);
  request.sample_index = static_cast<int32_t>(id);
  request.return_routes = id % 2 == 0;
  return request;
}

class Invariance : public ::testing::TestWithParam<std::tuple<const char*, ActivationDtype>> {
 protected:
  void SetUp() override {
    weights_ = load_weights(std::get<0>(GetParam()));
    config_.num_blocks = 512;
    alone_ = run(config_, [](EngineCore&) {});
    ASSERT_EQ(alone_.token_ids.size(), 40u);
    ASSERT_TRUE(alone_.routed_experts.has_value());
    ASSERT_EQ(alone_.routed_experts->num_tokens, 109);
  }

  // The subject with whatever `submit_others` adds before it.
  GeneratedSample run(const EngineConfig& config, const std::function<void(EngineCore&)>& others,
                      EngineStats* stats = nullptr) {
    auto core = std::move(EngineCore::create(real_parts(weights_, config, activations()))).value();
    others(*core);
    EXPECT_TRUE(core->submit(subject(weights_->config)).ok());
    GeneratedSample sample = run_all(*core).at(kSubject);
    if (stats != nullptr) *stats = core->stats();
    return sample;
  }
  [[nodiscard]] static ActivationDtype activations() { return std::get<1>(GetParam()); }

  // Bit for bit; events and times aside.
  void expect_equals_alone(const GeneratedSample& sample) const {
    EXPECT_EQ(sample.token_ids, alone_.token_ids);
    EXPECT_EQ(sample.logprobs, alone_.logprobs);
    EXPECT_EQ(sample.raw_logprobs, alone_.raw_logprobs);
    EXPECT_EQ(sample.support_logmass, alone_.support_logmass);
    EXPECT_EQ(sample.routed_experts, alone_.routed_experts);
  }

  WeightSetPtr weights_;
  EngineConfig config_;
  GeneratedSample alone_;
};

TEST_P(Invariance, InABatchOf32) {
  EngineStats stats;
  const GeneratedSample sample = run(
      config_,
      [&](EngineCore& core) {
        for (uint64_t i = 0; i < 31; ++i)
          EXPECT_TRUE(core.submit(neighbour(weights_->config, i)).ok());
      },
      &stats);
  EXPECT_LT(stats.num_steps, 60u) << "they did not run together";
  expect_equals_alone(sample);
}

TEST_P(Invariance, WithChunksOf1And7And64Tokens) {
  for (const int32_t chunk : {1, 7, 64}) {
    SCOPED_TRACE("chunk " + std::to_string(chunk));
    EngineConfig config = config_;
    config.prefill_chunk_tokens = chunk;
    EngineStats stats;
    const GeneratedSample sample = run(
        config, [](EngineCore&) {}, &stats);
    EXPECT_EQ(stats.num_steps, static_cast<uint64_t>((70 + chunk - 1) / chunk + 39));
    expect_equals_alone(sample);
  }
}

TEST_P(Invariance, WithOtherBlockSizes) {
  for (const int32_t block_tokens : {1, 5, 64}) {
    SCOPED_TRACE("block " + std::to_string(block_tokens));
    EngineConfig config = config_;
    config.block_tokens = block_tokens;
    expect_equals_alone(run(config, [](EngineCore&) {}));
  }
}

TEST_P(Invariance, UnderForcedPreemption) {
  EngineConfig config = config_;
  config.num_blocks = 14;  // the subject alone needs 7, its neighbours up to 9
  config.prefill_chunk_tokens = 16;
  EngineStats stats;
  const GeneratedSample sample = run(
      config,
      [&](EngineCore& core) {
        for (uint64_t i = 0; i < 6; ++i)
          EXPECT_TRUE(core.submit(neighbour(weights_->config, i)).ok());
      },
      &stats);
  EXPECT_GT(stats.num_preemptions, 0u);
  expect_equals_alone(sample);

  // And in every state of its own decoding.
  auto core = std::move(EngineCore::create(real_parts(weights_, config_, activations()))).value();
  ASSERT_TRUE(core->submit(subject(weights_->config)).ok());
  for (const int32_t size : {71, 72, 80, 96, 97, 109}) {
    while (core->sequence_tokens(kSubject) < size) core->step(std::chrono::steady_clock::now());
    ASSERT_TRUE(core->script_event(kSubject, EventKind::kPreemptRecompute, weights_).ok());
  }
  const GeneratedSample preempted = run_all(*core).at(kSubject);
  EXPECT_EQ(preempted.events.size(), 6u);
  EXPECT_EQ(preempted.events.front(), (TrajectoryEvent{71, EventKind::kPreemptRecompute, 1}));
  expect_equals_alone(preempted);
}

TEST_P(Invariance, WithAPrefilledPromptShared) {
  EngineStats stats;
  const GeneratedSample sample = run(
      config_,
      [&](EngineCore& core) {
        for (int32_t i = 0; i < 3; ++i) {
          SampleRequest sibling = subject(weights_->config);
          sibling.request_id = static_cast<uint64_t>(50 + i);
          sibling.sample_index = 10 + i;
          EXPECT_TRUE(core.submit(sibling).ok());
        }
      },
      &stats);
  // random_prompt() makes one object for each request: nothing to share above; here it is one.
  EXPECT_EQ(stats.num_prompt_hits, 0u);
  expect_equals_alone(sample);

  auto core = std::move(EngineCore::create(real_parts(weights_, config_, activations()))).value();
  SampleRequest request = subject(weights_->config);
  for (const int32_t index : {7, 8, 3, 9}) {  // the subject is neither first nor last
    request.request_id = index == 3 ? kSubject : static_cast<uint64_t>(index);
    request.sample_index = index;
    ASSERT_TRUE(core->submit(request).ok());
  }
  const auto samples = run_all(*core);
  EXPECT_EQ(core->stats().num_prompt_hits, 3u);
  EXPECT_EQ(core->stats().forwarded_tokens, 69u + 4 * 40u) << "the prompt was forwarded again";
  expect_equals_alone(samples.at(kSubject));
}

INSTANTIATE_TEST_SUITE_P(Models, Invariance,
                         ::testing::Combine(::testing::Values("qwen3moe-tiny", "qwen3moe-tiny-tied",
                                                              "qwen3moe-tiny-fp8block-ragged"),
                                            ::testing::Values(ActivationDtype::kF32,
                                                              ActivationDtype::kBf16)),
                         [](const auto& info) {
                           std::string name = std::string(std::get<0>(info.param)) + "_" +
                                              std::string(to_string(std::get<1>(info.param)));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace warproll
