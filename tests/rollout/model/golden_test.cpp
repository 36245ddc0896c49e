// The model against what transformers computed in FP32 on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "golden.h"

namespace warproll::testing {
namespace {

// Both sides are F32 with sums in different orders; measured agreement is about 1e-6, the bar is
// the project's.
constexpr float kTolerance = 1e-4f;
constexpr int kPrompts = 4;
constexpr int32_t kGreedyTokens = 24;

float max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<float>::infinity();
  float worst = 0.0f;
  for (size_t i = 0; i < a.size(); ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    worst = difference <= worst ? worst : difference;  // NaN becomes the worst
  }
  return worst;
}

// Router logits [T, L, E] of one layer: [T, E].
std::vector<float> layer_of(const std::vector<float>& router_logits, int32_t layers,
                            int32_t experts, int32_t layer) {
  std::vector<float> result;
  const auto stride = static_cast<size_t>(layers * experts);
  for (size_t at = static_cast<size_t>(layer * experts); at < router_logits.size(); at += stride) {
    result.insert(result.end(), router_logits.begin() + at, router_logits.begin() + at + experts);
  }
  return result;
}

double log_sum_exp(const std::vector<double>& x) {
  const double max = *std::max_element(x.begin(), x.end());
  double sum = 0.0;
  for (const double v : x) sum += std::exp(v - max);
  return max + std::log(sum);
}

struct Scored {
  double logprob;
  int32_t support;
};
// Log-probability of `id` under temperature and top-p (the token that crosses p is kept, ties to
// the lower id), and the number of kept tokens. F64, sorted: independent of the sampler.
Scored score(const float* logits, int32_t vocab, int32_t id, double temperature, double top_p) {
  std::vector<double> scaled(logits, logits + vocab);
  for (double& v : scaled) v /= temperature;
  const double total = log_sum_exp(scaled);
  std::vector<int32_t> order(static_cast<size_t>(vocab));
  for (int32_t i = 0; i < vocab; ++i) order[static_cast<size_t>(i)] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return scaled[a] > scaled[b]; });
  std::vector<double> kept;
  double mass = 0.0;
  bool inside = false;
  for (const int32_t token : order) {
    if (mass >= top_p) break;
    mass += std::exp(scaled[token] - total);
    kept.push_back(scaled[token]);
    inside = inside || token == id;
  }
  const double logprob = inside ? scaled[id] - log_sum_exp(kept) : -INFINITY;
  return {logprob, static_cast<int32_t>(kept.size())};
}

class GoldenModel : public ::testing::TestWithParam<std::string> {
 protected:
  LoadedModel model_ = load_model(GetParam());
  GoldenFile golden_{GetParam() + "_golden.safetensors"};
  int32_t vocab_ = model_.config.vocab_size;

  std::vector<int32_t> prompt(int p) const { return golden_.ints(key(p, "ids")); }
  static std::string key(int p, const std::string& what) {
    return "prompt" + std::to_string(p) + "." + what;
  }
};

TEST_P(GoldenModel, LogitsAndRouterLogitsAreThoseOfTransformers) {
  for (int p = 0; p < kPrompts; ++p) {
    ModelRunner runner(model_, ActivationDtype::kF32);
    TestSequence sequence = runner.new_sequence();
    const ForwardOutput out = prefill(runner, sequence, prompt(p));
    EXPECT_LE(max_difference(out.logits, golden_.floats(key(p, "logits"))), kTolerance)
        << "prompt " << p;
    const int32_t layers = model_.config.num_moe_layers();
    for (int32_t layer = 0; layer < layers; ++layer) {
      const auto got = layer_of(out.router_logits, layers, model_.config.num_experts, layer);
      const auto wanted = golden_.floats(key(p, "router_logits." + std::to_string(layer)));
      EXPECT_LE(max_difference(got, wanted), kTolerance) << "prompt " << p << " layer " << layer;
    }
    EXPECT_FALSE(golden_.has(key(p, "router_logits." + std::to_string(layers))));
  }
}

TEST_P(GoldenModel, GreedyIdsThroughTheKvCacheAreThoseOfTransformers) {
  for (int p = 0; p < kPrompts; ++p) {
    ModelRunner runner(model_, ActivationDtype::kF32);
    EXPECT_EQ(greedy(runner, prompt(p), kGreedyTokens, vocab_), golden_.ints(key(p, "greedy")))
        << "prompt " << p;
  }
}

TEST_P(GoldenModel, LogprobsOfTheGreedyTokensAreThoseOfTransformers) {
  for (int p = 0; p < kPrompts; ++p) {
    ModelRunner runner(model_, ActivationDtype::kF32);
    TestSequence sequence = runner.new_sequence();
    std::vector<int32_t> ids = prompt(p);
    const size_t first = ids.size() - 1;  // its logits give the first greedy token
    const std::vector<int32_t> tokens = golden_.ints(key(p, "greedy"));
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    const ForwardOutput out = prefill(runner, sequence, ids);
    const auto raw = golden_.floats(key(p, "greedy_raw_logprobs"));
    const auto truncated = golden_.floats(key(p, "greedy_t06_p09_logprobs"));
    const auto support = golden_.ints(key(p, "greedy_t06_p09_support"));
    ASSERT_EQ(tokens.size(), static_cast<size_t>(kGreedyTokens));
    for (size_t i = 0; i < tokens.size(); ++i) {
      const float* row = out.logits.data() + (first + i) * static_cast<size_t>(vocab_);
      EXPECT_NEAR(score(row, vocab_, tokens[i], 1.0, 2.0).logprob, raw[i], kTolerance);
      const Scored got = score(row, vocab_, tokens[i], 0.6, 0.9);
      EXPECT_NEAR(got.logprob, truncated[i], kTolerance) << "prompt " << p << " token " << i;
      EXPECT_EQ(got.support, support[i]) << "prompt " << p << " token " << i;
    }
  }
}

TEST_P(GoldenModel, PrefillChunksDoNotChangeOneBit) {
  for (int p = 0; p < kPrompts; ++p) {
    ModelRunner whole_runner(model_, ActivationDtype::kF32);
    TestSequence whole_sequence = whole_runner.new_sequence();
    const ForwardOutput whole = prefill(whole_runner, whole_sequence, prompt(p));
    for (const int32_t chunk : {1, 7, 64}) {
      ModelRunner runner(model_, ActivationDtype::kF32, 64, 16, 2);
      TestSequence sequence = runner.new_sequence();
      const ForwardOutput out = prefill(runner, sequence, prompt(p), chunk);
      EXPECT_TRUE(out.logits == whole.logits) << "prompt " << p << " chunk " << chunk;
      EXPECT_TRUE(out.router_logits == whole.router_logits);
      EXPECT_TRUE(out.routes == whole.routes);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, GoldenModel, ::testing::ValuesIn(kTinyModels), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

class Arithmetic : public ::testing::TestWithParam<std::string> {};

TEST_P(Arithmetic, GreedyAnswersAreThoseOfTransformers) {
  const LoadedModel model = load_model(GetParam());
  const auto golden = nlohmann::json::parse(read_file(golden_path(GetParam() + "_golden.json")));
  const auto tokenizer =
      nlohmann::json::parse(read_file(golden_path(GetParam() + "/tokenizer.json")));
  const auto& vocab = tokenizer.at("model").at("vocab");
  const auto& problems = golden.at("problems");
  ASSERT_EQ(problems.size(), 256u);
  ModelRunner runner(model, ActivationDtype::kF32, 512);
  for (const auto& problem : problems) {
    std::vector<int32_t> prompt;  // byte-level without merges: one token a character
    for (const char c : problem.at("prompt").get<std::string>()) {
      prompt.push_back(vocab.at(std::string(1, c)).get<int32_t>());
    }
    const auto wanted = problem.at("greedy_ids").get<std::vector<int32_t>>();
    EXPECT_EQ(greedy(runner, prompt, static_cast<int32_t>(wanted.size()), model.config.vocab_size),
              wanted)
        << problem.at("prompt");
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Arithmetic, ::testing::Values("arith-v1", "arith-v2", "arith-v3"),
                         [](const auto& info) { return info.param.substr(6); });

}  // namespace
}  // namespace warproll::testing
