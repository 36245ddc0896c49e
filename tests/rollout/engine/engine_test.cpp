// Engine: the thread around the core. Several threads submit, cancel, poll and swap weights.
#include "rollout/engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <stdexcept>
#include <thread>

#include "tests/rollout/engine/fake_model.h"

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;
Clock::time_point soon() { return Clock::now() + std::chrono::seconds(60); }

EngineParts fake_parts(const EngineConfig& config, ModelBackend backend) {
  EngineParts parts;
  parts.config = config;
  parts.backend = std::move(backend);
  parts.weights = fake_weights(1);
  return parts;
}

std::unique_ptr<Engine> make_engine(const EngineConfig& config) {
  return std::move(
             Engine::create(fake_parts(config, fake_backend(std::make_shared<FakeModel>(config)))))
      .value();
}

TEST(Engine, GivesEverySubmittedSampleOnceWhileWeightsSwap) {
  EngineConfig config = small_config();
  config.max_queued_requests = 40;
  const auto engine = make_engine(config);
  constexpr uint64_t kPerProducer = 150;
  std::atomic<int> refused{0};
  std::atomic<uint64_t> flips{0};
  const auto give_up = soon();
  std::vector<std::thread> producers;
  std::mutex mutex;
  std::map<uint64_t, SampleRequest> requests;
  for (uint64_t producer = 0; producer < 2; ++producer) {
    producers.emplace_back([&, producer] {
      std::mt19937_64 random(producer);
      for (uint64_t i = 0; i < kPerProducer;) {
        // Weights come all along, also where the swapper gets no CPU for a while.
        while (flips < i * 5 / kPerProducer && Clock::now() < give_up) std::this_thread::yield();
        SampleRequest request = fake_request(producer * 1000 + i, fake_prompt(9), 12);
        request.in_flight = static_cast<InFlightPolicy>(random() % 4);
        const Status status = engine->submit(request);
        if (status.code() == StatusCode::kUnavailable) {
          ++refused;
          std::this_thread::yield();
          continue;
        }
        ASSERT_TRUE(status.ok()) << status.to_string();
        if (random() % 10 == 0) engine->cancel(request.request_id, "by the test");
        const std::lock_guard lock(mutex);
        requests[request.request_id] = request;
        ++i;
      }
    });
  }
  std::atomic<bool> done{false};
  std::thread swapper([&] {
    for (uint64_t version = 2; !done; ++version) {
      const auto report = engine->install_weights(fake_weights(version), soon());
      ASSERT_TRUE(report.ok()) << report.status().to_string();
      EXPECT_LE(report->in_flight_sequences, 40u);
      EXPECT_EQ(engine->stats().weight_version, version);
      if (version % 5 == 0) {
        EXPECT_TRUE(engine->release_pins(InFlightPolicy::kKeep, soon()).ok());
      }
      ++flips;
    }
  });
  std::map<uint64_t, GeneratedSample> samples;
  while (samples.size() < 2 * kPerProducer && Clock::now() < give_up) {
    for (GeneratedSample& sample : engine->poll(Clock::now() + std::chrono::milliseconds(100))) {
      const uint64_t request_id = sample.request_id;
      EXPECT_TRUE(samples.emplace(request_id, std::move(sample)).second);
    }
  }
  done = true;
  for (std::thread& producer : producers) producer.join();
  swapper.join();
  ASSERT_EQ(samples.size(), 2 * kPerProducer);
  EXPECT_EQ(engine->num_outstanding(), 0u);
  EXPECT_GT(flips, 3u);
  for (const auto& [request_id, sample] : samples) {
    FakeReplay replay;
    expect_record_replays(requests.at(request_id), sample, replay);
    if (HasFatalFailure()) return;
  }
}

TEST(Engine, IsUnavailableWhenItsQueueIsFullUntilSamplesArePolled) {
  EngineConfig config = small_config();
  config.max_queued_requests = 2;
  const auto engine = make_engine(config);
  ASSERT_TRUE(engine->submit(fake_request(1, fake_prompt(3), 2)).ok());
  ASSERT_TRUE(engine->submit(fake_request(2, fake_prompt(3), 2)).ok());
  const Status full = engine->submit(fake_request(3, fake_prompt(3), 2));
  EXPECT_EQ(full.code(), StatusCode::kUnavailable);
  EXPECT_NE(full.message().find("the limit is 2"), std::string::npos);
  size_t polled = 0;
  while (polled < 2) {
    const auto samples = engine->poll(soon());
    ASSERT_FALSE(samples.empty());
    polled += samples.size();
  }
  EXPECT_TRUE(engine->submit(fake_request(3, fake_prompt(3), 2)).ok());
}

TEST(Engine, RefusesBadRequestsAtOnce) {
  const auto engine = make_engine(small_config());
  EXPECT_EQ(engine->submit(fake_request(1, fake_prompt(0))).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->num_outstanding(), 0u);
}

TEST(Engine, ASwapWhileIdleCostsNothing) {
  const auto engine = make_engine(small_config());
  const auto report = engine->install_weights(fake_weights(2), soon());
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->stall_us, 0u);
  EXPECT_EQ(report->stall_steps, 0u);
  EXPECT_EQ(report->in_flight_sequences, 0u);
  EXPECT_FALSE(engine->install_weights(nullptr, soon()).ok());
}

TEST(Engine, AnExceptionInAStepEndsTheEngineAndLosesNoSample) {
  const EngineConfig config = small_config();
  const auto model = std::make_shared<FakeModel>(config);
  ModelBackend backend = fake_backend(model);
  backend.forward = [model](const ForwardBatch& batch, const WeightSet& weights,
                            ForwardOutput& out) {
    if (weights.weight_version == 2) throw std::runtime_error("the device fell off the bus");
    model->forward(batch, weights, out);
  };
  const auto engine = std::move(Engine::create(fake_parts(config, backend))).value();
  ASSERT_TRUE(engine->submit(fake_request(1, fake_prompt(5), 3)).ok());
  ASSERT_EQ(engine->poll(soon()).at(0).finish_reason, FinishReason::kLength);
  ASSERT_TRUE(engine->install_weights(fake_weights(2), soon()).ok());
  ASSERT_TRUE(engine->submit(fake_request(2, fake_prompt(5), 3)).ok());
  const auto samples = engine->poll(soon());
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_EQ(samples[0].finish_reason, FinishReason::kError);
  EXPECT_EQ(samples[0].error_type, "engine_failure");
  EXPECT_EQ(samples[0].error_message, "the device fell off the bus");
  EXPECT_EQ(engine->failure().message(), "engine: the device fell off the bus");
  EXPECT_EQ(engine->failure().code(), StatusCode::kInternal);
  EXPECT_EQ(engine->submit(fake_request(3, fake_prompt(5), 3)).code(), StatusCode::kInternal);
  EXPECT_FALSE(engine->install_weights(fake_weights(3), soon()).ok());
}

TEST(Engine, CountsStepsTokensAndTimes) {
  const auto engine = make_engine(small_config());
  ASSERT_TRUE(engine->submit(fake_request(1, fake_prompt(8), 4)).ok());
  ASSERT_EQ(engine->poll(soon()).size(), 1u);
  // An idle swap is answered after the statistics of all steps before it are out.
  ASSERT_TRUE(engine->install_weights(fake_weights(2), soon()).ok());
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.num_steps, 4u);
  EXPECT_EQ(stats.forwarded_tokens, 11u);
  EXPECT_EQ(stats.sampled_tokens, 4u);
  EXPECT_EQ(stats.finished_samples, 1u);
  EXPECT_EQ(stats.free_blocks, stats.total_blocks);
  uint64_t counted = 0;
  for (const uint64_t count : stats.step_time_counts) counted += count;
  EXPECT_EQ(counted, stats.num_steps);
}

}  // namespace
}  // namespace warproll
