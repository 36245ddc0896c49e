// A mixed run over the arith checkpoints (policies, sampling parameters, flips, preemptions, shared
// prompts, routes) and the records a collector would store of it. Thread: one test.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "rollout/engine/engine_core.h"

namespace warproll::testing {

// The record a collector would store.
inline Trajectory record_of(const SampleRequest& request, const GeneratedSample& sample,
                            ActivationDtype activations = ActivationDtype::kF32) {
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
  t.activation_dtype = std::string(to_string(activations));
  t.tokenizer_digest[0] = 1;
  t.engine_version = "test";
  return t;
}

inline SampleRequest random_request(uint64_t id, std::mt19937_64& random,
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
inline std::vector<Trajectory> mixed_run(const std::vector<WeightSetPtr>& versions,
                                         const ModelRunner& runner, size_t count,
                                         EngineStats& stats) {
  EngineConfig config;
  config.max_batch_tokens = 48;
  config.prefill_chunk_tokens = 6;
  config.max_running_sequences = 12;
  config.block_tokens = 4;
  config.num_blocks = 30;  // 12 sequences of up to 11 blocks
  EngineParts parts;
  parts.config = config;
  parts.backend =
      runner.make_backend(versions[0]->config, backend_sizes(config, versions[0]->config));
  parts.weights = versions[0];
  auto core = std::move(EngineCore::create(std::move(parts))).value();
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
      EXPECT_TRUE(core->install_weights(versions[random() % 3]).ok());
    }
    if (step % 50 == 0) {
      EXPECT_TRUE(core->release_pins(InFlightPolicy::kKeep).ok());
    }
    core->step(std::chrono::steady_clock::now());
    for (const GeneratedSample& sample : core->take_finished())
      records.push_back(record_of(requests.at(sample.request_id), sample, runner.activations));
  }
  stats = core->stats();
  return records;
}

}  // namespace warproll::testing
