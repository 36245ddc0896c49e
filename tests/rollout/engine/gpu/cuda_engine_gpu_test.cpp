// The engine on a GPU: golden answers cold and after hot swaps, samples of a mixed run made again bit
// for bit, the retired arena out of reach, nothing left behind by many swaps.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "rollout/engine/regenerate.h"
#include "rollout/engine/score.h"
#include "tests/golden_dir.h"
#include "tests/rollout/engine/gpu/gpu_model.h"
#include "tests/rollout/engine/mixed_run.h"

namespace warproll::testing {
namespace {

EngineParts gpu_parts(const WeightSetPtr& weights, const EngineConfig& config,
                      const CudaBackendOptions& options = {}) {
  EngineParts parts;
  parts.config = config;
  parts.backend =
      make_cuda_backend(weights->config, backend_sizes(config, weights->config), options);
  parts.weights = weights;
  return parts;
}

// Digits are ids 15..24, '+' is 10, '=' is 28: byte-level ids of the arith tokenizer.
int32_t arith_id(char c) {
  if (c >= '0' && c <= '9') return 15 + (c - '0');
  return c == '+' ? 10 : 28;
}

SampleRequest greedy_request(uint64_t request_id, const std::string& prompt) {
  SampleRequest request;
  request.request_id = request_id;
  std::vector<int32_t> ids;
  for (const char c : prompt) ids.push_back(arith_id(c));
  request.prompt_ids = std::make_shared<const std::vector<int32_t>>(std::move(ids));
  request.sampling.temperature = 0.0f;
  request.sampling.max_tokens = 16;
  return request;
}

// How far ahead of transformers' token the F32 model puts the one that was taken instead.
float logit_gap(const WeightSet& host, const std::vector<int32_t>& prompt,
                const std::vector<int32_t>& golden, size_t position, int32_t taken) {
  std::vector<int32_t> tokens = prompt;
  tokens.insert(tokens.end(), golden.begin(), golden.begin() + static_cast<long>(position));
  const auto score = [&](int32_t id) {
    std::vector<int32_t> with = tokens;
    with.push_back(id);
    return score_tokens(host, cpu_runner(ActivationDtype::kF32), with,
                        static_cast<int32_t>(tokens.size()), {})
        .value()
        .at(0)
        .raw_logprob;
  };
  return score(golden[position]) - score(taken);
}

TEST(CudaEngine, GreedyAnswersOfEachVersionAreThoseOfTransformersColdAndAfterSwaps) {
  SKIP_WITHOUT_GPU();
  const std::vector<WeightSetPtr> versions = load_arith_on_gpu(), host = load_arith();
  EngineConfig config;
  config.num_blocks = 2048;
  auto core = std::move(EngineCore::create(gpu_parts(versions[2], config))).value();
  for (const uint64_t version : {3, 1, 2, 3, 1}) {  // a cold start, then hot swaps
    ASSERT_TRUE(core->install_weights(versions[version - 1]).ok());
    std::ifstream file(golden_dir() + "/arith-v" + std::to_string(version) + "_golden.json");
    const auto problems = nlohmann::json::parse(file).at("problems");
    for (size_t i = 0; i < problems.size(); ++i) {
      ASSERT_TRUE(
          core->submit(greedy_request(i, problems[i].at("prompt").get<std::string>())).ok());
    }
    const auto samples = run_all(*core);
    int equal = 0, correct = 0, golden_correct = 0;
    for (size_t i = 0; i < problems.size(); ++i) {
      const auto golden = problems[i].at("greedy_ids").get<std::vector<int32_t>>();
      std::vector<int32_t> answer;
      for (const char c : problems[i].at("answer").get<std::string>())
        answer.push_back(arith_id(c));
      const auto starts_with_answer = [&](const std::vector<int32_t>& ids) {
        return ids.size() == answer.size() + 1 &&
               std::equal(answer.begin(), answer.end(), ids.begin());
      };
      const auto& got = samples.at(i).token_ids;
      correct += starts_with_answer(got);
      golden_correct += starts_with_answer(golden);
      if (got == golden) {
        ++equal;
        continue;
      }
      const auto at = static_cast<size_t>(
          std::mismatch(got.begin(), got.end(), golden.begin(), golden.end()).first - got.begin());
      if (at >= std::min(got.size(), golden.size())) continue;
      const SampleRequest request = greedy_request(i, problems[i].at("prompt").get<std::string>());
      std::printf("v%d %s token %zu: %d, transformers %d, gap in F32 %.4f\n",
                  static_cast<int>(version), problems[i].at("prompt").get<std::string>().c_str(),
                  at, got[at], golden[at],
                  static_cast<double>(
                      logit_gap(*host[version - 1], *request.prompt_ids, golden, at, got[at])));
    }
    std::printf("v%d: %d of 256 equal, %d correct, transformers %d\n", static_cast<int>(version),
                equal, correct, golden_correct);
    if (version == 3) {
      EXPECT_GE(equal, 254);
    }
    EXPECT_LE(std::abs(correct - golden_correct), 6);
  }
}

TEST(CudaEngine, FiveHundredSamplesOfAMixedRunComeOutBitForBit) {
  SKIP_WITHOUT_GPU();
  const std::vector<WeightSetPtr> versions = load_arith_on_gpu();
  EngineStats stats;
  const ModelRunner runner = cuda_runner({});
  const std::vector<Trajectory> records = mixed_run(versions, runner, 500, stats);
  ASSERT_GE(records.size(), 500u);
  EXPECT_GT(stats.num_preemptions, 20u);
  EXPECT_GT(stats.num_prompt_hits, 100u);
  EXPECT_GT(stats.num_flips, 20u);
  const auto lookup = [&](uint64_t version, const Digest&) -> Result<WeightSetPtr> {
    return versions.at(version - 1);
  };
  for (const Trajectory& stored : records) {
    const auto made = regenerate(stored, lookup, runner);
    ASSERT_TRUE(made.ok()) << stored.trajectory_id << ": " << made.status().to_string();
    const auto& difference = made->first_difference;
    ASSERT_FALSE(difference.has_value())
        << stored.trajectory_id << " at " << difference->position << ", " << difference->field
        << ": stored " << difference->stored << ", regenerated " << difference->regenerated;
  }
}

// Two arenas taken in turns: while one serves, the other is overwritten with NaN. A graph or a kernel
// that still read the retired one would give tokens that are not numbers.
TEST(CudaEngine, TheRetiredArenaIsNotReadAnyMore) {
  SKIP_WITHOUT_GPU();
  WeightArenas arenas(0, gpu_arenas());
  WeightSetPtr first = load_on_gpu("arith-v3", arenas, 1);
  EngineConfig config;
  config.num_blocks = 512;
  auto core = std::move(EngineCore::create(gpu_parts(first, config))).value();
  const auto answers = [&] {
    for (uint64_t i = 0; i < 24; ++i)
      EXPECT_TRUE(core->submit(greedy_request(i, std::to_string(100 + 7 * i) + "+456=")).ok());
    std::map<uint64_t, std::vector<int32_t>> tokens;
    for (const auto& [id, sample] : run_all(*core)) {
      EXPECT_NE(sample.finish_reason, FinishReason::kError) << sample.error_message;
      tokens[id] = sample.token_ids;
    }
    return tokens;
  };
  const auto wanted = answers();
  for (uint64_t version = 2; version < 6; ++version) {
    const WeightSetPtr next = load_on_gpu("arith-v3", arenas, version);
    ASSERT_TRUE(core->install_weights(next).ok());
    const auto* staged = static_cast<const StagedWeights*>(first->storage.get());
    auto* const retired = const_cast<std::byte*>(staged->arena.data());
    WARPROLL_CUDA_CHECK(cudaMemset(retired, 0xff, staged->arena.size()));
    EXPECT_EQ(answers(), wanted) << "version " << version;
    first = next;
  }
}

size_t open_descriptors() {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}
size_t threads() {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
}

TEST(CudaEngine, AThousandSwapsLeaveNothingBehind) {
  SKIP_WITHOUT_GPU();
  WeightArenas arenas(0, gpu_arenas());
  EngineConfig config;
  config.num_blocks = 512;
  auto core =
      std::move(EngineCore::create(gpu_parts(load_on_gpu("arith-v1", arenas, 1), config))).value();
  size_t free_bytes = 0, descriptors = 0, num_threads = 0;
  for (uint64_t swap = 1; swap <= 1000; ++swap) {
    ASSERT_TRUE(
        core->submit(greedy_request(swap, std::to_string(100 + swap % 900) + "+456=")).ok());
    core->step(std::chrono::steady_clock::now());
    const std::string name = "arith-v" + std::to_string(swap % 3 + 1);
    ASSERT_TRUE(core->install_weights(load_on_gpu(name, arenas, swap + 1)).ok());
    for (int i = 0; i < 8; ++i) core->step(std::chrono::steady_clock::now());
    static_cast<void>(core->take_finished());
    if (swap != 100 && swap != 1000) continue;
    const size_t free_now = list_gpus().at(0).free_bytes;
    if (swap == 100) {
      free_bytes = free_now;
      descriptors = open_descriptors();
      num_threads = threads();
      continue;
    }
    EXPECT_GE(free_now, free_bytes);
    EXPECT_EQ(open_descriptors(), descriptors);
    EXPECT_EQ(threads(), num_threads);
  }
}

}  // namespace
}  // namespace warproll::testing
