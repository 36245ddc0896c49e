// What the GPU tests of sampling share: rows of logits, and a launch of some.
// Thread: one test. Errors: CudaError.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gpu_support.h"
#include "kernels/sampling.h"
#include "kernels/step/sample.h"

namespace warproll::testing {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

enum class Logits { kNormal, kPeaked, kTies, kEqual, kMasked, kBf16, kZeros };
inline constexpr Logits kAllLogits[] = {Logits::kNormal, Logits::kPeaked, Logits::kTies,
                                        Logits::kEqual,  Logits::kMasked, Logits::kBf16,
                                        Logits::kZeros};

struct Row {
  std::vector<float> logits;
  RowSampling sampling;
};

inline std::vector<float> make_logits(Logits kind, int32_t vocab_size, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0.0f, kind == Logits::kPeaked ? 1.0f : 3.0f);
  std::vector<float> logits(static_cast<size_t>(vocab_size));
  for (float& l : logits) {
    l = normal(random);
    if (kind == Logits::kTies) l = std::round(l * 2.0f) / 2.0f;
    if (kind == Logits::kEqual) l = 1.25f;
    if (kind == Logits::kMasked && random() % 3 == 0) l = -kInf;
    if (kind == Logits::kBf16) l = std::bit_cast<float>(std::bit_cast<uint32_t>(l) & 0xffff0000u);
    if (kind == Logits::kZeros) l = random() % 2 == 0 ? 0.0f : -0.0f;
  }
  if (kind == Logits::kPeaked) logits[random() % logits.size()] = 25.0f;
  if (kind == Logits::kMasked) logits[random() % logits.size()] = 2.0f;
  return logits;
}

inline double random_uniform(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1.0p-53;
}

inline std::string describe(const Row& row) {
  const RowSampling& s = row.sampling;
  return "V " + std::to_string(row.logits.size()) + ", t " + std::to_string(s.temperature) +
         ", top_k " + std::to_string(s.top_k) + ", top_p " + std::to_string(s.top_p) + ", min_p " +
         std::to_string(s.min_p) + ", u " + std::to_string(s.uniform);
}

// All rows of one V. The rows of `out` are poisoned, with a row of canary on both sides.
inline std::vector<SampledToken> run(const std::vector<Row>& rows,
                                     const std::vector<int32_t>* given = nullptr) {
  const size_t vocab = rows[0].logits.size();
  std::vector<float> logits;
  std::vector<RowSampling> samplings;
  for (const Row& row : rows) {
    EXPECT_EQ(row.logits.size(), vocab);
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
    samplings.push_back(row.sampling);
  }
  const DeviceBuffer<float> device_logits(logits);
  const DeviceBuffer<RowSampling> device_rows(samplings);
  const DeviceBuffer<int32_t> device_given =
      given == nullptr ? DeviceBuffer<int32_t>() : DeviceBuffer<int32_t>(*given);
  const SampledToken poison{-77, kNan, kNan, kNan, -77};
  const DeviceBuffer<SampledToken> out(std::vector<SampledToken>(rows.size() + 2, poison));
  SampleParams p;
  p.logits = device_logits.data();
  p.rows = device_rows.data();
  p.given_ids = device_given.data();
  p.out = out.data() + 1;
  p.num_rows = static_cast<int32_t>(rows.size());
  p.vocab_size = static_cast<int32_t>(vocab);
  sample_tokens(p, nullptr);
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  std::vector<SampledToken> all = out.to_host();
  EXPECT_EQ(all.front().token_id, -77);
  EXPECT_EQ(all.back().token_id, -77);
  return {all.begin() + 1, all.end() - 1};
}

inline bool same_bits(const SampledToken& a, const SampledToken& b) {
  static_assert(sizeof(SampledToken) == 20);
  return std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace warproll::testing
