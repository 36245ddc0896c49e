// Sampling against an independent Python oracle (tests/kernels/sampling_oracle.py), known answers
// of Philox, frequencies, ties and edges.
#include "kernels/sampling.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/philox.h"

namespace warproll {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
// Log-probabilities of both sides are the same double expressions rounded to F32 once; the exp of
// libm and of numpy may differ in the last place of a double.
constexpr double kLogprobTolerance = 2e-6;

struct Case {
  std::vector<float> logits;
  float temperature = 1.0f;
  float top_p = 1.0f;
  int32_t top_k = 0;
  float min_p = 0.0f;
  uint64_t seed = 0;
  uint32_t sample_index = 0;
  uint32_t position = 0;
};

SamplingRow row_of(const Case& c) {
  return {c.logits, c.temperature, c.top_p,
          c.top_k,  c.min_p,       sampling_uniform(c.seed, c.sample_index, c.position)};
}

std::string to_hex_bytes(const std::vector<float>& values) {
  std::string hex;
  hex.reserve(values.size() * 8);
  for (const float value : values) {
    const auto bits = std::bit_cast<uint32_t>(value);
    char text[9];
    std::snprintf(text, sizeof text, "%02x%02x%02x%02x", bits & 0xff, bits >> 8 & 0xff,
                  bits >> 16 & 0xff, bits >> 24);
    hex += text;
  }
  return hex;
}

std::vector<float> random_logits(std::mt19937_64& random, int vocab_size, float sigma) {
  std::normal_distribution<float> normal(0.0f, sigma);
  std::vector<float> logits(static_cast<size_t>(vocab_size));
  for (float& logit : logits) logit = normal(random);
  return logits;
}

std::vector<Case> many_cases() {
  std::mt19937_64 random(20261129);
  std::vector<Case> cases;
  const int vocab_sizes[] = {1, 2, 3, 31, 127, 128, 129, 512, 3000};
  const float temperatures[] = {0.0f, 0.1f, 0.6f, 1.0f, 1.7f};
  const float top_ps[] = {1e-6f, 0.3f, 0.9f, 0.999f, 1.0f};
  const int32_t top_ks[] = {0, 1, 2, 20, 100000};
  const float min_ps[] = {0.0f, 0.05f, 1.0f};
  for (const int vocab_size : vocab_sizes) {
    for (const float temperature : temperatures) {
      for (const float top_p : top_ps) {
        for (const int32_t top_k : top_ks) {
          for (const float min_p : min_ps) {
            if (random() % 3 != 0) continue;  // a third of the 3375 combinations
            Case c{random_logits(random, vocab_size, random() % 2 == 0 ? 0.5f : 4.0f),
                   temperature,
                   top_p,
                   top_k,
                   min_p,
                   random(),
                   static_cast<uint32_t>(random() % 100),
                   static_cast<uint32_t>(random() % 40000)};
            // Ties, also at the edge of a support; masked tokens.
            if (random() % 2 == 0) {
              for (float& logit : c.logits) logit = std::round(logit * 2.0f) / 2.0f;
            }
            if (random() % 4 == 0 && vocab_size > 2) c.logits[random() % 2] = -kInf;
            cases.push_back(std::move(c));
          }
        }
      }
    }
  }
  return cases;
}

std::string json_of(const Case& c) {
  std::ostringstream out;
  out.precision(9);
  out << R"({"logits_hex":")" << to_hex_bytes(c.logits) << R"(","temperature":)" << c.temperature
      << R"(,"top_p":)" << c.top_p << R"(,"top_k":)" << c.top_k << R"(,"min_p":)" << c.min_p
      << R"(,"seed":)" << c.seed << R"(,"sample_index":)" << c.sample_index << R"(,"position":)"
      << c.position << "}";
  return out.str();
}

struct Answer {
  double uniform = 0.0;
  int32_t token_id = -1;
  double logprob = 0.0, raw_logprob = 0.0, support_logmass = 0.0;
  int32_t support_size = 0;
};

// A field of the oracle's flat JSON answer.
std::string field(const std::string& line, const std::string& name) {
  const size_t start = line.find("\"" + name + "\": ");
  if (start == std::string::npos) return {};
  const size_t value = start + name.size() + 4;
  std::string text = line.substr(value, line.find_first_of(",}", value) - value);
  std::erase(text, '"');
  return text;
}

std::vector<Answer> ask_oracle(const std::vector<Case>& cases) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("warproll_sampling_" + std::to_string(std::random_device{}()));
  std::filesystem::create_directories(folder);
  {
    std::ofstream in(folder / "cases.jsonl");
    for (const Case& c : cases) in << json_of(c) << "\n";
  }
  const std::string command = std::string("'") + WARPROLL_TEST_PYTHON + "' '" +
                              WARPROLL_SOURCE_DIR + "/tests/kernels/sampling_oracle.py' < '" +
                              (folder / "cases.jsonl").string() + "' > '" +
                              (folder / "answers.jsonl").string() + "'";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  std::vector<Answer> answers;
  std::ifstream out(folder / "answers.jsonl");
  for (std::string line; std::getline(out, line);) {
    answers.push_back({std::strtod(field(line, "uniform_hex").c_str(), nullptr),
                       std::atoi(field(line, "token_id").c_str()),
                       std::strtod(field(line, "logprob").c_str(), nullptr),
                       std::strtod(field(line, "raw_logprob").c_str(), nullptr),
                       std::strtod(field(line, "support_logmass").c_str(), nullptr),
                       std::atoi(field(line, "support_size").c_str())});
  }
  std::filesystem::remove_all(folder);
  return answers;
}

TEST(Philox, GivesTheKnownAnswersOfItsAuthors) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32_10({ones, ones, ones, ones}, {ones, ones}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Sampling, GivesTheIdsAndLogprobsOfThePythonOracle) {
  const std::vector<Case> cases = many_cases();
  ASSERT_GT(cases.size(), 1000u);
  const std::vector<Answer> answers = ask_oracle(cases);
  ASSERT_EQ(answers.size(), cases.size());
  std::vector<SamplingRow> rows;
  for (const Case& c : cases) rows.push_back(row_of(c));
  std::vector<SampledToken> batch(rows.size());
  sample_tokens_cpu(rows, batch);
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(json_of(cases[i]).substr(cases[i].logits.size() * 8));
    const Answer& want = answers[i];
    EXPECT_EQ(rows[i].uniform, want.uniform);
    EXPECT_EQ(batch[i].token_id, want.token_id);
    EXPECT_EQ(batch[i].support_size, want.support_size);
    EXPECT_NEAR(batch[i].logprob, want.logprob, kLogprobTolerance * (1 + std::abs(want.logprob)));
    EXPECT_NEAR(batch[i].raw_logprob, want.raw_logprob,
                kLogprobTolerance * (1 + std::abs(want.raw_logprob)));
    EXPECT_NEAR(batch[i].support_logmass, want.support_logmass,
                kLogprobTolerance * (1 + std::abs(want.support_logmass)));
    const SampledToken scored = score_token_cpu(rows[i], batch[i].token_id);
    EXPECT_EQ(scored.logprob, batch[i].logprob);
    EXPECT_EQ(scored.raw_logprob, batch[i].raw_logprob);
    EXPECT_EQ(scored.support_logmass, batch[i].support_logmass);
  }
}

// Pearson's chi-square over tokens that are expected at least 10 times.
void expect_frequencies_fit(const SamplingRow& row, uint64_t seed) {
  constexpr int kDraws = 40000;
  const auto vocab_size = static_cast<int32_t>(row.logits.size());
  std::vector<int> counts(row.logits.size(), 0);
  SamplingRow drawn = row;
  for (int i = 0; i < kDraws; ++i) {
    drawn.uniform =
        sampling_uniform(seed, static_cast<uint32_t>(i % 8), static_cast<uint32_t>(i / 8));
    ++counts[static_cast<size_t>(sample_token_cpu(drawn).token_id)];
  }
  double chi_square = 0.0;
  int degrees = -1;
  double rest_expected = 0.0;
  int rest_count = 0;
  for (int32_t id = 0; id < vocab_size; ++id) {
    const double expected = kDraws * std::exp(score_token_cpu(row, id).logprob);
    const int count = counts[static_cast<size_t>(id)];
    if (expected == 0.0) {
      EXPECT_EQ(count, 0) << "token " << id << " is outside the support";
    } else if (expected < 10.0) {
      rest_expected += expected;
      rest_count += count;
    } else {
      chi_square += (count - expected) * (count - expected) / expected;
      ++degrees;
    }
  }
  if (rest_expected >= 10.0) {
    chi_square += (rest_count - rest_expected) * (rest_count - rest_expected) / rest_expected;
    ++degrees;
  }
  ASSERT_GT(degrees, 5);
  // Wilson-Hilferty: the cube root is nearly normal; 4 sigma is one false alarm in 30,000 seeds.
  const double k = degrees;
  const double z = (std::cbrt(chi_square / k) - (1 - 2 / (9 * k))) / std::sqrt(2 / (9 * k));
  EXPECT_LT(std::abs(z), 4.0) << "chi-square " << chi_square << " of " << degrees
                              << " degrees of freedom, seed " << seed;
}

TEST(Sampling, FrequenciesFitTheSamplingDistribution) {
  std::mt19937_64 random(7);
  const std::vector<float> logits = random_logits(random, 200, 1.5f);
  expect_frequencies_fit({.logits = logits}, 1);
  expect_frequencies_fit({.logits = logits, .temperature = 0.6f, .top_p = 0.9f}, 2);
  expect_frequencies_fit({.logits = logits, .temperature = 1.3f, .top_k = 40}, 3);
  expect_frequencies_fit({.logits = logits, .min_p = 0.1f}, 4);
}

TEST(Sampling, TiesGoToTheLowerId) {
  const std::vector<float> logits = {1.0f, 2.0f, 2.0f, -0.0f, 0.0f, 2.0f};
  EXPECT_EQ(sample_token_cpu({.logits = logits, .temperature = 0.0f}).token_id, 1);
  EXPECT_EQ(sample_token_cpu({.logits = logits, .top_k = 1, .uniform = 0.99}).token_id, 1);
  EXPECT_EQ(sample_token_cpu({.logits = logits, .top_k = 2, .uniform = 0.99}).token_id, 2);
  EXPECT_EQ(sample_token_cpu({.logits = logits, .top_k = 5, .uniform = 0.999999}).token_id, 3);
  EXPECT_EQ(score_token_cpu({.logits = logits, .top_k = 2}, 5).logprob, -kInf);
}

TEST(Sampling, TopPKeepsTheTokenThatCrossesP) {
  const std::vector<float> logits = {0.0f, 0.0f, 0.0f, 0.0f};
  EXPECT_EQ(sample_token_cpu({.logits = logits, .top_p = 0.5f}).support_size, 2);
  EXPECT_EQ(sample_token_cpu({.logits = logits, .top_p = 0.51f}).support_size, 3);
  EXPECT_EQ(sample_token_cpu({.logits = logits, .top_p = 1e-30f}).support_size, 1);
}

TEST(Sampling, GreedyReportsTheRawLogprob) {
  const std::vector<float> logits = {0.0f, 3.0f, 1.0f};
  const SampledToken greedy =
      sample_token_cpu({.logits = logits, .temperature = 0.0f, .top_p = 0.1f, .top_k = 1});
  const double raw = 3.0 - std::log(1.0 + std::exp(3.0) + std::exp(1.0));
  EXPECT_EQ(greedy.token_id, 1);
  EXPECT_NEAR(greedy.raw_logprob, raw, kLogprobTolerance);
  EXPECT_EQ(greedy.logprob, greedy.raw_logprob);
  EXPECT_EQ(greedy.support_logmass, 0.0f);
  EXPECT_EQ(greedy.support_size, 1);
}

TEST(Sampling, LogprobIsRawLogprobLessSupportMassAtTemperatureOne) {
  std::mt19937_64 random(3);
  const std::vector<float> logits = random_logits(random, 500, 2.0f);
  const SampledToken token =
      sample_token_cpu({.logits = logits, .top_p = 0.8f, .top_k = 50, .uniform = 0.4});
  EXPECT_NEAR(token.logprob, token.raw_logprob - token.support_logmass, 1e-5);
  const SampledToken full = sample_token_cpu({.logits = logits, .uniform = 0.4});
  EXPECT_EQ(full.logprob, full.raw_logprob);
  EXPECT_EQ(full.support_logmass, 0.0f);
}

TEST(Sampling, RefusesRowsWithoutAFiniteMaximum) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float temperature : {0.0f, 0.7f}) {
    for (const float bad : {nan, kInf}) {
      const std::vector<float> logits = {0.0f, bad, 1.0f};
      EXPECT_EQ(sample_token_cpu({.logits = logits, .temperature = temperature}).token_id, -1);
    }
    const std::vector<float> masked = {-kInf, -kInf};
    EXPECT_EQ(sample_token_cpu({.logits = masked, .temperature = temperature}).token_id, -1);
  }
}

TEST(Sampling, SurvivesExtremeTemperaturesAndLogits) {
  const std::vector<float> logits = {-3e38f, 3e38f, 2.9e38f};
  for (const float temperature : {1e-40f, 1e-6f, 1.0f, 1e30f}) {
    const SampledToken token =
        sample_token_cpu({.logits = logits, .temperature = temperature, .uniform = 0.3});
    EXPECT_EQ(token.token_id, 1) << temperature;
    EXPECT_TRUE(std::isfinite(token.logprob)) << temperature;
  }
}

TEST(Sampling, ErrorsPrintTheValue) {
  const std::vector<float> logits = {0.0f, 1.0f};
  const auto message = [](const SamplingRow& row) -> std::string {
    try {
      (void)sample_token_cpu(row);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(message({.logits = {}}).find("V >= 1"), std::string::npos);
  EXPECT_NE(message({.logits = logits, .temperature = -1.0f}).find("-1.0"), std::string::npos);
  EXPECT_NE(message({.logits = logits, .top_p = 0.0f}).find("top_p 0.0"), std::string::npos);
  EXPECT_NE(message({.logits = logits, .top_p = 1.5f}).find("top_p 1.5"), std::string::npos);
  EXPECT_NE(message({.logits = logits, .top_k = -3}).find("top_k -3"), std::string::npos);
  EXPECT_NE(message({.logits = logits, .min_p = 2.0f}).find("min_p 2.0"), std::string::npos);
  EXPECT_NE(message({.logits = logits, .uniform = 1.0}).find("uniform 1.0"), std::string::npos);
  EXPECT_THROW((void)score_token_cpu({.logits = logits}, 2), std::invalid_argument);
}

}  // namespace
}  // namespace warproll
