#include "kernels/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/check.h"
#include "kernels/parallel.h"

namespace warproll {
namespace {

// An exp or two and the order's key cost about this many multiply-adds.
constexpr int64_t kWorkPerLogit = 32;

// Tokens whose w is under exp(-12) are seldom looked at.
constexpr float kHeadWidth = 12.0f;

void check_row(const SamplingRow& row) {
  check_argument(!row.logits.empty(), [] { return "sampling: no logits, wanted V >= 1"; });
  check_argument(row.temperature >= 0.0f && !std::isinf(row.temperature), [&] {
    return "sampling: temperature " + std::to_string(row.temperature) + ", wanted finite and >= 0";
  });
  check_argument(row.top_p > 0.0f && row.top_p <= 1.0f, [&] {
    return "sampling: top_p " + std::to_string(row.top_p) + ", wanted (0, 1]";
  });
  check_argument(row.top_k >= 0,
                 [&] { return "sampling: top_k " + std::to_string(row.top_k) + ", wanted >= 0"; });
  check_argument(row.min_p >= 0.0f && row.min_p <= 1.0f, [&] {
    return "sampling: min_p " + std::to_string(row.min_p) + ", wanted [0, 1]";
  });
  check_argument(row.uniform >= 0.0 && row.uniform < 1.0, [&] {
    return "sampling: uniform " + std::to_string(row.uniform) + ", wanted [0, 1)";
  });
}

// Logits and ids packed into integers whose ascending order is the order of sampling.h.
uint64_t order_key(float logit, uint32_t token_id) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 and +0 tie
  const uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return (static_cast<uint64_t>(~ascending) << 32) | token_id;
}

// The order, sorted from its head only as far as somebody looks. Tokens below `head_from` come after
// all others and are not even collected before somebody looks that far.
class DescendingOrder {
 public:
  DescendingOrder(std::span<const float> logits, float head_from)
      : logits_(logits), head_from_(head_from) {
    collect([&](float logit) { return logit >= head_from_; });
  }
  int32_t token_id(size_t rank) {
    if (rank >= num_sorted_) sort_to(rank + 1);
    return static_cast<int32_t>(static_cast<uint32_t>(keys_[rank]));
  }

 private:
  template <typename Condition>
  void collect(const Condition& is_wanted) {
    for (size_t i = 0; i < logits_.size(); ++i) {
      if (is_wanted(logits_[i])) keys_.push_back(order_key(logits_[i], static_cast<uint32_t>(i)));
    }
  }
  void sort_to(size_t wanted) {
    constexpr size_t kFirst = 128;
    constexpr size_t kGrowth = 8;
    if (wanted > keys_.size()) {
      sort_range(keys_.size());
      collect([&](float logit) { return !(logit >= head_from_); });
    }
    sort_range(std::min(keys_.size(), std::max({wanted, kFirst, num_sorted_ * kGrowth})));
  }
  void sort_range(size_t target) {
    const auto begin = keys_.begin() + static_cast<ptrdiff_t>(num_sorted_);
    const auto end = keys_.begin() + static_cast<ptrdiff_t>(target);
    if (target < keys_.size()) std::nth_element(begin, end, keys_.end());
    std::sort(begin, end);
    num_sorted_ = target;
  }
  const std::span<const float> logits_;
  const float head_from_;
  std::vector<uint64_t> keys_;
  size_t num_sorted_ = 0;
};

struct RowMaximum {
  int32_t token_id = -1;  // -1: no token can be sampled from this row
  float logit = 0.0f;
};

RowMaximum find_maximum(std::span<const float> logits) {
  RowMaximum best{-1, -std::numeric_limits<float>::infinity()};
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) return {};
    if (logits[i] > best.logit) best = {static_cast<int32_t>(i), logits[i]};
  }
  return std::isinf(best.logit) ? RowMaximum{} : best;
}

// w of sampling.h, for one row at one temperature.
struct ScaledWeights {
  std::span<const float> logits;
  double temperature;
  double scaled_max;
  double total = 0.0;  // Z

  ScaledWeights(std::span<const float> row_logits, double row_temperature, float max_logit)
      : logits(row_logits),
        temperature(row_temperature),
        scaled_max(static_cast<double>(max_logit) / row_temperature) {
    for (const float logit : logits) total += std::exp(shifted(logit));
  }
  [[nodiscard]] double shifted(float logit) const {
    return static_cast<double>(logit) / temperature - scaled_max;
  }
  [[nodiscard]] double shifted(int32_t token_id) const {
    return shifted(logits[static_cast<size_t>(token_id)]);
  }
  [[nodiscard]] double weight(int32_t token_id) const { return std::exp(shifted(token_id)); }
};

struct Support {
  size_t size = 0;    // n
  double mass = 0.0;  // M
};

Support find_support(const SamplingRow& row, const ScaledWeights& weights, DescendingOrder& order) {
  const size_t vocab_size = row.logits.size();
  const bool has_top_k = row.top_k > 0 && static_cast<size_t>(row.top_k) < vocab_size;
  const size_t limit = has_top_k ? static_cast<size_t>(row.top_k) : vocab_size;
  if (limit == vocab_size && row.top_p >= 1.0f && row.min_p <= 0.0f)
    return {vocab_size, weights.total};

  double mass_after_top_k = weights.total;
  if (has_top_k) {
    mass_after_top_k = 0.0;
    for (size_t rank = 0; rank < limit; ++rank)
      mass_after_top_k += weights.weight(order.token_id(rank));
  }
  const double wanted = row.top_p < 1.0f ? static_cast<double>(row.top_p) * mass_after_top_k
                                         : std::numeric_limits<double>::infinity();
  const auto min_weight = static_cast<double>(row.min_p);
  Support support;
  while (support.size < limit && support.mass < wanted) {
    const double weight = weights.weight(order.token_id(support.size));
    if (weight < min_weight) break;
    support.mass += weight;
    ++support.size;
  }
  if (support.size == vocab_size) support.mass = weights.total;
  return support;
}

int32_t draw(double uniform, const Support& support, const ScaledWeights& weights,
             DescendingOrder& order) {
  const double target = uniform * support.mass;
  double cumulative = 0.0;
  int32_t last_possible = order.token_id(0);
  for (size_t rank = 0; rank < support.size; ++rank) {
    const int32_t token_id = order.token_id(rank);
    const double weight = weights.weight(token_id);
    cumulative += weight;
    if (cumulative > target) return token_id;
    if (weight > 0.0) last_possible = token_id;
  }
  return last_possible;
}

bool in_support(int32_t token_id, const Support& support, DescendingOrder& order,
                std::span<const float> logits) {
  if (support.size == logits.size()) return true;
  const int32_t last = order.token_id(support.size - 1);
  const auto key = [&](int32_t id) {
    return order_key(logits[static_cast<size_t>(id)], static_cast<uint32_t>(id));
  };
  return key(token_id) <= key(last);
}

// Draws when `given` is negative, else scores that token.
SampledToken sample_or_score(const SamplingRow& row, int32_t given) {
  const RowMaximum maximum = find_maximum(row.logits);
  if (maximum.token_id < 0) return {};
  const ScaledWeights raw(row.logits, 1.0, maximum.logit);
  const auto raw_logprob = [&](int32_t token_id) {
    return static_cast<float>(raw.shifted(token_id) - std::log(raw.total));
  };
  if (row.temperature == 0.0f) {
    const int32_t token_id = given < 0 ? maximum.token_id : given;
    const float logprob = raw_logprob(token_id);
    const bool kept = token_id == maximum.token_id;
    return {token_id, kept ? logprob : -std::numeric_limits<float>::infinity(), logprob, 0.0f, 1};
  }
  const ScaledWeights weights =
      row.temperature == 1.0f ? raw : ScaledWeights(row.logits, row.temperature, maximum.logit);
  DescendingOrder order(row.logits, maximum.logit - kHeadWidth * row.temperature);
  const Support support = find_support(row, weights, order);
  const int32_t token_id = given < 0 ? draw(row.uniform, support, weights, order) : given;
  SampledToken sampled;
  sampled.token_id = token_id;
  sampled.raw_logprob = raw_logprob(token_id);
  sampled.logprob = in_support(token_id, support, order, row.logits)
                        ? static_cast<float>(weights.shifted(token_id) - std::log(support.mass))
                        : -std::numeric_limits<float>::infinity();
  sampled.support_logmass =
      static_cast<float>(std::min(0.0, std::log(support.mass / weights.total)));
  sampled.support_size = static_cast<int32_t>(support.size);
  return sampled;
}

}  // namespace

SampledToken sample_token_cpu(const SamplingRow& row) {
  check_row(row);
  return sample_or_score(row, -1);
}

void sample_tokens_cpu(std::span<const SamplingRow> rows, std::span<SampledToken> out) {
  check_argument(rows.size() == out.size(), [&] {
    return "sampling: room for " + std::to_string(out.size()) + " tokens, wanted " +
           std::to_string(rows.size());
  });
  for (const SamplingRow& row : rows) check_row(row);
  const auto num_rows = static_cast<int64_t>(rows.size());
  const int64_t work = num_rows == 0 ? 0 : num_rows * static_cast<int64_t>(rows[0].logits.size());
  parallel_ranges(num_rows, work * kWorkPerLogit, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      out[static_cast<size_t>(i)] = sample_or_score(rows[static_cast<size_t>(i)], -1);
  });
}

SampledToken score_token_cpu(const SamplingRow& row, int32_t token_id) {
  check_row(row);
  if (token_id < 0 || static_cast<size_t>(token_id) >= row.logits.size()) {
    throw std::invalid_argument("sampling: token id " + std::to_string(token_id) + ", wanted [0, " +
                                std::to_string(row.logits.size()) + ")");
  }
  return sample_or_score(row, token_id);
}

}  // namespace warproll
