// Sampling on the GPU against kernels/sampling.h's CPU functions.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "sample_support.h"

namespace warproll {
namespace {

using namespace testing;  // sample_support.h

// Log-probabilities: the untempered sum is of F32 exp, the rest differs in the last place of F32.
constexpr double kTolerance = 1e-5;
// Of cumulative masses, relative to the mass they are compared with.
constexpr double kMassTolerance = 1e-12;
constexpr double kLastUniform = 1.0 - 0x1.0p-53;

SamplingRow cpu_row(const Row& row) { return with_logits(row.sampling, row.logits); }

// Cumulative masses of the order, in long double.
struct Order {
  std::vector<int32_t> ids;
  std::vector<long double> mass_to;  // [V + 1], of the first n

  explicit Order(const Row& row) : ids(row.logits.size()), mass_to(row.logits.size() + 1, 0.0L) {
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    const auto logit = [&](int32_t id) { return row.logits[static_cast<size_t>(id)]; };
    std::stable_sort(ids.begin(), ids.end(),
                     [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
    const long double largest = logit(ids[0]), t = row.sampling.temperature;
    for (size_t i = 0; i < ids.size(); ++i)
      mass_to[i + 1] = mass_to[i] + std::exp((logit(ids[i]) - largest) / t);
  }
};

// How far the mass at which a token is drawn is from u * M, relative to M; 0: it is the right one.
double distance_of_draw(const Row& row, const Order& order, const SampledToken& token) {
  const long double mass = order.mass_to[static_cast<size_t>(token.support_size)];
  const long double wanted = row.sampling.uniform * mass;
  const auto rank = static_cast<size_t>(
      std::find(order.ids.begin(), order.ids.end(), token.token_id) - order.ids.begin());
  if (rank == order.ids.size()) return kInf;
  return static_cast<double>(
      std::max({order.mass_to[rank] - wanted, wanted - order.mass_to[rank + 1], 0.0L}) / mass);
}

void expect_near(float got, float want) {
  if (got == want) return;  // infinities too
  EXPECT_NEAR(got, want, kTolerance * (1.0 + 0.1 * std::abs(want)));
}

void expect_numbers(const SampledToken& got, const SampledToken& want) {
  EXPECT_EQ(got.support_size, want.support_size);
  expect_near(got.logprob, want.logprob);
  expect_near(got.raw_logprob, want.raw_logprob);
  expect_near(got.support_logmass, want.support_logmass);
}

struct Counts {
  int64_t rows = 0;    // with a random uniform
  int64_t differ = 0;  // of these: another id than the CPU's
};

// Everything of every row against the CPU. An id may differ where the crossing is within rounding.
void expect_like_cpu(const std::vector<Row>& rows, const std::vector<SampledToken>& got,
                     Counts& counts) {
  std::vector<SamplingRow> cpu_rows;
  for (const Row& row : rows) cpu_rows.push_back(cpu_row(row));
  std::vector<SampledToken> cpu(rows.size());
  sample_tokens_cpu(cpu_rows, cpu);
  for (size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE("row " + std::to_string(i) + ", " + describe(rows[i]));
    const double u = rows[i].sampling.uniform;
    const bool random = u > 0x1.0p-50 && u < 1.0 - 0x1.0p-50;
    if (random) ++counts.rows;
    SampledToken want = cpu[i];
    if (got[i].token_id != want.token_id) {
      ASSERT_GE(want.token_id, 0);
      ASSERT_GT(rows[i].sampling.temperature, 0.0f);
      ASSERT_GE(got[i].token_id, 0);
      ASSERT_LT(got[i].token_id, static_cast<int32_t>(rows[i].logits.size()));
      EXPECT_LE(distance_of_draw(rows[i], Order(rows[i]), got[i]), kMassTolerance)
          << "got " << got[i].token_id << ", CPU " << want.token_id;
      if (random) ++counts.differ;
      want = score_token_cpu(cpu_rows[i], got[i].token_id);
    }
    expect_numbers(got[i], want);
  }
}

// Every combination of parameters, for logits of one kind.
std::vector<Row> all_parameters(Logits kind, int32_t vocab_size, std::mt19937_64& random,
                                uint64_t keep_one_in) {
  std::vector<Row> rows;
  const int32_t top_ks[] = {0, 1, 5, 50, vocab_size};
  for (const float temperature : {0.0f, 0.6f, 1.0f, 1.7f}) {
    for (const int32_t top_k : top_ks) {
      for (const float top_p : {1.0f, 0.9f, 0.1f, 1e-6f}) {
        for (const float min_p : {0.0f, 0.05f, 1.0f}) {
          if (random() % keep_one_in != 0) continue;
          const auto logits = make_logits(kind, vocab_size, random);
          for (const double u : {0.0, 0.5, kLastUniform, random_uniform(random)}) {
            rows.push_back({logits, {temperature, top_p, top_k, min_p, u}});
          }
        }
      }
    }
  }
  if (rows.empty()) rows.push_back({make_logits(kind, vocab_size, random), {}});
  return rows;
}

TEST(SampleGpu, GivesTheTokensAndNumbersOfTheCpu) {
  SKIP_WITHOUT_GPU();
  Counts counts;
  for (const int32_t vocab_size : {1, 2, 31, 512, 1000, 151936}) {
    for (const Logits kind : kAllLogits) {
      std::mt19937_64 random(20261201 + static_cast<uint64_t>(vocab_size));
      SCOPED_TRACE("kind " + std::to_string(static_cast<int>(kind)));
      const auto rows = all_parameters(kind, vocab_size, random, vocab_size > 1000 ? 12 : 1);
      expect_like_cpu(rows, run(rows), counts);
    }
  }
  EXPECT_LE(counts.differ, 1) << "of " << counts.rows;
}

TEST(SampleGpu, GivesTheTokensOfTheCpuForManyUniforms) {
  SKIP_WITHOUT_GPU();
  std::mt19937_64 random(7);
  Counts counts;
  for (int batch = 0; batch < 50; ++batch) {
    std::vector<Row> rows;
    for (int i = 0; i < 4000; ++i) {
      RowSampling s{i % 3 == 0 ? 0.6f : 1.0f, i % 2 == 0 ? 1.0f : 0.9f, i % 5 == 0 ? 50 : 0, 0.0f,
                    random_uniform(random)};
      rows.push_back({i % 100 == 0
                          ? make_logits(kAllLogits[static_cast<size_t>(i / 100) % 7], 512, random)
                          : rows.back().logits,
                      s});
    }
    expect_like_cpu(rows, run(rows), counts);
  }
  EXPECT_GE(counts.rows, 199000);
  EXPECT_LE(counts.differ, counts.rows / 100000);
}

TEST(SampleGpu, KnowsTheLargestVocabularyAndOddOnes) {
  SKIP_WITHOUT_GPU();
  std::mt19937_64 random(8);
  Counts counts;
  for (const int32_t vocab_size :
       {7, 33, 4095, 4097, 32001, kMaxSampleVocab - 1, kMaxSampleVocab}) {
    std::vector<Row> rows;
    for (const Logits kind : kAllLogits) {
      const auto logits = make_logits(kind, vocab_size, random);
      rows.push_back({logits, {1.0f, 1.0f, 0, 0.0f, random_uniform(random)}});
      rows.push_back({logits, {1.3f, 0.7f, vocab_size / 2 + 1, 0.0f, random_uniform(random)}});
      rows.push_back({logits, {0.0f, 1.0f, 0, 0.0f, 0.0}});
    }
    expect_like_cpu(rows, run(rows), counts);
  }
  EXPECT_LE(counts.differ, 1);
}

TEST(SampleGpu, SurvivesExtremeTemperaturesAndLogits) {
  SKIP_WITHOUT_GPU();
  std::mt19937_64 random(9);
  Counts counts;
  std::vector<Row> rows;
  for (const float temperature : {1e-45f, 1e-40f, 1e-6f, 1.0f, 1e30f, 3e38f}) {
    for (const float unit : {1e-45f, 1e-42f, 1e-6f, 1e37f}) {
      std::vector<float> logits = make_logits(Logits::kNormal, 3000, random);
      for (float& l : logits) l *= unit;
      for (const double u : {0.0, 0.3, 0.99})
        rows.push_back({logits, {temperature, u == 0.3 ? 0.9f : 1.0f, 0, 0.0f, u}});
    }
  }
  expect_like_cpu(rows, run(rows), counts);
}

TEST(SampleGpu, ScoresGivenTokensAsTheCpuDoes) {
  SKIP_WITHOUT_GPU();
  for (const int32_t vocab_size : {1, 31, 1000, 151936}) {
    for (const Logits kind : kAllLogits) {
      std::mt19937_64 random(11 + static_cast<uint64_t>(vocab_size));
      const auto rows = all_parameters(kind, vocab_size, random, vocab_size > 1000 ? 30 : 4);
      std::vector<int32_t> given;
      for (size_t i = 0; i < rows.size(); ++i)
        given.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size)));
      const auto got = run(rows, &given);
      for (size_t i = 0; i < rows.size(); ++i) {
        SCOPED_TRACE(describe(rows[i]) + ", token " + std::to_string(given[i]));
        EXPECT_EQ(got[i].token_id, given[i]);
        expect_numbers(got[i], score_token_cpu(cpu_row(rows[i]), given[i]));
      }
    }
  }
}

TEST(SampleGpu, ADrawnTokenScoresTheSameBits) {
  SKIP_WITHOUT_GPU();
  std::mt19937_64 random(12);
  const auto rows = all_parameters(Logits::kNormal, 1000, random, 1);
  const auto drawn = run(rows);
  std::vector<int32_t> ids;
  for (const SampledToken& token : drawn) ids.push_back(token.token_id);
  const auto scored = run(rows, &ids);
  for (size_t i = 0; i < rows.size(); ++i)
    EXPECT_TRUE(same_bits(drawn[i], scored[i])) << describe(rows[i]);
}

TEST(SampleGpu, TemperatureOneWithoutTruncationReportsTheRawLogprob) {
  SKIP_WITHOUT_GPU();
  std::mt19937_64 random(13);
  for (const float temperature : {0.0f, 1.0f}) {
    const auto got = run({{make_logits(Logits::kNormal, 1000, random), {temperature}}});
    EXPECT_EQ(got[0].logprob, got[0].raw_logprob);
    EXPECT_EQ(got[0].support_logmass, 0.0f);
  }
}

TEST(SampleGpu, RefusesRowsWithoutAFiniteMaximumAndBadParameters) {
  SKIP_WITHOUT_GPU();
  std::mt19937_64 random(14);
  std::vector<Row> rows;
  for (const int32_t at : {0, 500, 999}) {
    for (const float bad : {kNan, -kNan, kInf}) {
      for (const float temperature : {0.0f, 0.7f, 1.0f}) {
        rows.push_back({make_logits(Logits::kNormal, 1000, random), {temperature}});
        rows.back().logits[static_cast<size_t>(at)] = bad;
      }
    }
  }
  rows.push_back({std::vector<float>(1000, -kInf), {1.0f}});
  rows.push_back({std::vector<float>(1000, -kInf), {0.0f}});
  for (const RowSampling& bad :
       {RowSampling{-1.0f}, RowSampling{kInf}, RowSampling{kNan}, RowSampling{1.0f, 0.0f},
        RowSampling{1.0f, 1.5f}, RowSampling{1.0f, 1.0f, -1}, RowSampling{1.0f, 1.0f, 0, 2.0f},
        RowSampling{1.0f, 1.0f, 0, 0.0f, 1.0}, RowSampling{1.0f, 1.0f, 0, 0.0f, -0.5}}) {
    rows.push_back({make_logits(Logits::kNormal, 1000, random), bad});
  }
  const SampledToken none;
  for (const SampledToken& token : run(rows)) EXPECT_TRUE(same_bits(token, none));

  const std::vector<int32_t> given = {-1, 1000, 999};
  const auto scored =
      run(std::vector<Row>(3, {make_logits(Logits::kNormal, 1000, random), {}}), &given);
  EXPECT_EQ(scored[0].token_id, -1);
  EXPECT_EQ(scored[1].token_id, -1);
  EXPECT_EQ(scored[2].token_id, 999);
}

}  // namespace
}  // namespace warproll
