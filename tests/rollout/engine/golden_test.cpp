// The engine and score_tokens() against what transformers computed on the golden checkpoints.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/philox.h"
#include "rollout/engine/score.h"
#include "tests/golden_dir.h"
#include "tests/rollout/engine/real_model.h"

namespace warproll {
namespace {

constexpr float kLogprobTolerance = 1e-4f;  // the golden data's own agreement is 1e-5

// A golden safetensors file: I32 and F32 tensors by name.
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& name) {
    std::ifstream file(golden_dir() + "/" + name, std::ios::binary);
    uint64_t header_bytes = 0;
    file.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
    std::string header(header_bytes, '\0');
    file.read(header.data(), static_cast<std::streamsize>(header_bytes));
    header_ = nlohmann::json::parse(header);
    data_.assign(std::istreambuf_iterator<char>(file), {});
  }
  template <typename T>
  std::vector<T> get(const std::string& tensor) const {
    const auto& offsets = header_.at(tensor).at("data_offsets");
    const size_t begin = offsets[0];
    const size_t end = offsets[1];
    std::vector<T> values((end - begin) / sizeof(T));
    std::memcpy(values.data(), data_.data() + begin, end - begin);
    return values;
  }

 private:
  nlohmann::json header_;
  std::vector<char> data_;
};

SampleRequest greedy_request(uint64_t request_id, std::vector<int32_t> prompt, int32_t max_tokens) {
  SampleRequest request;
  request.request_id = request_id;
  request.prompt_ids = std::make_shared<const std::vector<int32_t>>(std::move(prompt));
  request.sampling.temperature = 0.0f;
  request.sampling.max_tokens = max_tokens;
  return request;
}

class GoldenModels : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenModels, GreedyIdsAndAllLogprobsAreThoseOfTransformers) {
  const WeightSetPtr weights = load_weights(GetParam());
  const GoldenFile golden(GetParam() + "_golden.safetensors");
  EngineConfig config;
  config.num_blocks = 128;
  auto core = std::move(EngineCore::create(real_parts(weights, config))).value();
  std::vector<std::vector<int32_t>> prompts;
  for (uint64_t p = 0; p < 4; ++p) {
    prompts.push_back(golden.get<int32_t>("prompt" + std::to_string(p) + ".ids"));
    SampleRequest request = greedy_request(p, prompts.back(), 24);
    request.sampling.ignore_eos = true;
    ASSERT_TRUE(core->submit(request).ok());
  }
  const auto samples = run_all(*core);
  for (uint64_t p = 0; p < 4; ++p) {
    const std::string prompt = "prompt" + std::to_string(p);
    SCOPED_TRACE(prompt);
    const auto greedy = golden.get<int32_t>(prompt + ".greedy");
    ASSERT_EQ(samples.at(p).token_ids, greedy);
    EXPECT_EQ(samples.at(p).finish_reason, FinishReason::kLength);
    const auto raw = golden.get<float>(prompt + ".greedy_raw_logprobs");
    const auto truncated = golden.get<float>(prompt + ".greedy_t06_p09_logprobs");
    const auto support = golden.get<int32_t>(prompt + ".greedy_t06_p09_support");
    std::vector<int32_t> tokens = prompts[p];
    tokens.insert(tokens.end(), greedy.begin(), greedy.end());
    SamplingParams sampling;
    sampling.temperature = 0.6f;
    sampling.top_p = 0.9f;
    const auto scores = score_tokens(*weights, cpu_runner(ActivationDtype::kF32), tokens,
                                     static_cast<int32_t>(prompts[p].size()), sampling);
    ASSERT_TRUE(scores.ok()) << scores.status().to_string();
    for (size_t i = 0; i < greedy.size(); ++i) {
      SCOPED_TRACE("sampled token " + std::to_string(i));
      EXPECT_NEAR(samples.at(p).raw_logprobs[i], raw[i], kLogprobTolerance);
      EXPECT_EQ(samples.at(p).logprobs[i], samples.at(p).raw_logprobs[i]);
      EXPECT_NEAR((*scores)[i].logprob, truncated[i], kLogprobTolerance);
      EXPECT_EQ((*scores)[i].support_size, support[i]);
      // Prefill in big chunks and decode give a token the same bits.
      EXPECT_EQ((*scores)[i].raw_logprob, samples.at(p).raw_logprobs[i]);
    }
  }
}

// The engine's own draws at T=0.6, top-p=0.9 against transformers' numbers: after a prompt and the
// first i greedy tokens, under a seed whose uniform number must draw greedy token i.
TEST_P(GoldenModels, TokensDrawnAtTemperature06AndTopP09HaveTheNumbersOfTransformers) {
  const WeightSetPtr weights = load_weights(GetParam());
  const GoldenFile golden(GetParam() + "_golden.safetensors");
  EngineConfig config;
  config.num_blocks = 128;
  auto core = std::move(EngineCore::create(real_parts(weights, config))).value();
  for (const std::string prompt : {"prompt0", "prompt1", "prompt2", "prompt3"}) {
    const auto greedy = golden.get<int32_t>(prompt + ".greedy");
    const auto raw = golden.get<float>(prompt + ".greedy_raw_logprobs");
    const auto truncated = golden.get<float>(prompt + ".greedy_t06_p09_logprobs");
    const auto support = golden.get<int32_t>(prompt + ".greedy_t06_p09_support");
    std::vector<int32_t> tokens = golden.get<int32_t>(prompt + ".ids");
    const size_t stride = tokens.size() < 300 ? 1 : 12;  // each is a prefill of the whole prompt
    for (size_t i = 0; i < greedy.size(); tokens.push_back(greedy[i++])) {
      if (i % stride != 0) continue;
      SCOPED_TRACE(prompt + ", token " + std::to_string(i));
      SampleRequest request = greedy_request(i, tokens, 1);
      request.sampling.temperature = 0.6f;
      request.sampling.top_p = 0.9f;
      // It is the first of the order: drawn by every number below its probability.
      const auto position = static_cast<uint32_t>(tokens.size());
      while (sampling_uniform(request.sampling.seed, 0, position) > 0.9 * std::exp(truncated[i]))
        ++request.sampling.seed;
      ASSERT_TRUE(core->submit(request).ok());
      const GeneratedSample sample = run_all(*core).at(i);
      ASSERT_EQ(sample.token_ids, std::vector<int32_t>{greedy[i]});
      EXPECT_NEAR(sample.logprobs[0], truncated[i], kLogprobTolerance);
      EXPECT_NEAR(sample.raw_logprobs[0], raw[i], kLogprobTolerance);
      // A sample carries the support's mass, not its size; equal bits mean the same support.
      std::vector<int32_t> with_drawn = tokens;
      with_drawn.push_back(greedy[i]);
      const auto scores = score_tokens(*weights, cpu_runner(ActivationDtype::kF32), with_drawn,
                                       static_cast<int32_t>(tokens.size()), request.sampling);
      ASSERT_TRUE(scores.ok()) << scores.status().to_string();
      EXPECT_EQ(scores->at(0).support_size, support[i]);
      EXPECT_EQ(sample.support_logmass[0], scores->at(0).support_logmass);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModels,
                         ::testing::Values("qwen3moe-tiny", "qwen3moe-tiny-tied",
                                           "qwen3moe-tiny-sharded", "qwen3moe-tiny-hf4",
                                           "qwen3moe-tiny-fused", "qwen3moe-tiny-mxfp8",
                                           "qwen3moe-tiny-mxfp8-ct", "qwen3moe-tiny-mxfp8-modelopt",
                                           "qwen3moe-tiny-fp8block",
                                           "qwen3moe-tiny-fp8block-ragged"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// The engine sampling at T=0.6, top-p=0.9 reports what score_tokens(), checked above, gives.
TEST(GoldenSampling, SampledLogprobsAreThoseOfACleanForward) {
  const WeightSetPtr weights = load_weights("qwen3moe-tiny");
  const GoldenFile golden("qwen3moe-tiny_golden.safetensors");
  EngineConfig config;
  config.num_blocks = 64;
  auto core = std::move(EngineCore::create(real_parts(weights, config))).value();
  SampleRequest request = greedy_request(1, golden.get<int32_t>("prompt1.ids"), 40);
  request.sampling.temperature = 0.6f;
  request.sampling.top_p = 0.9f;
  request.sampling.ignore_eos = true;
  ASSERT_TRUE(core->submit(request).ok());
  const GeneratedSample sample = run_all(*core).at(1);
  std::vector<int32_t> tokens = *request.prompt_ids;
  tokens.insert(tokens.end(), sample.token_ids.begin(), sample.token_ids.end());
  const auto scores =
      score_tokens(*weights, cpu_runner(ActivationDtype::kF32), tokens,
                   static_cast<int32_t>(request.prompt_ids->size()), request.sampling);
  ASSERT_TRUE(scores.ok());
  ASSERT_EQ(scores->size(), sample.token_ids.size());
  for (size_t i = 0; i < scores->size(); ++i) {
    EXPECT_NEAR(sample.logprobs[i], (*scores)[i].logprob, kLogprobTolerance);
    EXPECT_NEAR(sample.support_logmass[i], (*scores)[i].support_logmass, kLogprobTolerance);
  }
}

// Digits are ids 15..24, '+' is 10, '=' is 28: byte-level ids of the arith tokenizer.
int32_t arith_id(char c) {
  if (c >= '0' && c <= '9') return 15 + (c - '0');
  return c == '+' ? 10 : 28;
}

TEST(GoldenArith, GreedyAnswersOfEachVersionAreThoseOfTransformers) {
  const std::vector<WeightSetPtr> versions = load_arith();
  EngineConfig config;
  config.num_blocks = 512;
  auto core = std::move(EngineCore::create(real_parts(versions[0], config))).value();
  for (const uint64_t version : {1, 2, 3, 1}) {  // a cold start, then hot swaps
    ASSERT_TRUE(core->install_weights(versions[version - 1]).ok());
    std::ifstream file(golden_dir() + "/arith-v" + std::to_string(version) + "_golden.json");
    const auto problems = nlohmann::json::parse(file).at("problems");
    ASSERT_EQ(problems.size(), 256u);
    for (size_t i = 0; i < problems.size(); ++i) {
      std::vector<int32_t> prompt;
      for (const char c : problems[i].at("prompt").get<std::string>())
        prompt.push_back(arith_id(c));
      ASSERT_TRUE(core->submit(greedy_request(i, prompt, 16)).ok());
    }
    const auto samples = run_all(*core);
    for (size_t i = 0; i < problems.size(); ++i) {
      EXPECT_EQ(samples.at(i).token_ids, problems[i].at("greedy_ids").get<std::vector<int32_t>>())
          << "version " << version << ", " << problems[i].at("prompt");
      EXPECT_EQ(samples.at(i).finish_reason, FinishReason::kStop);
    }
  }
}

}  // namespace
}  // namespace warproll
