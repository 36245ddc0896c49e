#include "kernels/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "kernels/router.h"
#include "op_support.h"

namespace warproll {
namespace {

using testing::kAllFormats;
using testing::name_of;
using testing::poisoned;
using testing::random_floats;
using testing::random_weight;
using testing::TestFormat;
using testing::TestWeight;

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed route(const std::vector<float>& logits, int32_t tokens, int32_t experts, int32_t k,
             bool renormalise, const int32_t* given = nullptr) {
  Routed routed{std::vector<int32_t>(size_t(tokens) * k, -1), poisoned(int64_t{tokens} * k)};
  router_cpu({.logits = logits.data(),
              .given_ids = given,
              .topk_ids = routed.ids.data(),
              .topk_weights = routed.weights.data(),
              .num_tokens = tokens,
              .num_experts = experts,
              .top_k = k,
              .renormalise = renormalise});
  return routed;
}

TEST(Router, TakesTheBestOfASoftmaxOverAllExperts) {
  std::mt19937 rng(61);
  for (const auto& [experts, k] : {std::pair{1, 1}, {8, 2}, {17, 16}, {128, 8}, {512, 16}}) {
    for (const bool renormalise : {false, true}) {
      const auto logits = random_floats(5 * experts, rng, 3.0f);
      const Routed routed = route(logits, 5, experts, k, renormalise);
      for (int32_t t = 0; t < 5; ++t) {
        const float* row = logits.data() + t * experts;
        std::vector<int32_t> order(static_cast<size_t>(experts));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return row[a] > row[b]; });
        double total = 0.0;
        const int32_t counted = renormalise ? k : experts;
        for (int32_t i = 0; i < counted; ++i) total += std::exp(double{row[order[i]]});
        for (int32_t i = 0; i < k; ++i) {
          EXPECT_EQ(routed.ids[t * k + i], order[i]);
          EXPECT_NEAR(routed.weights[t * k + i], std::exp(double{row[order[i]]}) / total, 1e-6);
        }
      }
    }
  }
}

TEST(Router, TiesGoToTheLowestExpert) {
  const std::vector<float> logits{1.0f, 2.0f, 2.0f, 0.5f, 2.0f, 2.0f};
  EXPECT_EQ(route(logits, 1, 6, 3, true).ids, (std::vector<int32_t>{1, 2, 4}));
  EXPECT_EQ(route(std::vector<float>(40, 0.0f), 1, 40, 4, true).ids,
            (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST(Router, GivenExpertsAreUsedInTheirOrderWithThisRoutersWeights) {
  std::mt19937 rng(62);
  const auto logits = random_floats(2 * 8, rng);
  const Routed free = route(logits, 2, 8, 2, true);
  const Routed same = route(logits, 2, 8, 2, true, free.ids.data());
  EXPECT_EQ(same.ids, free.ids);
  EXPECT_TRUE(same.weights == free.weights);
  const std::vector<int32_t> given{7, 0, 3, 5};
  const Routed replayed = route(logits, 2, 8, 2, false, given.data());
  EXPECT_EQ(replayed.ids, given);
  const Routed all = route(logits, 2, 8, 8, false);
  for (size_t i = 0; i < 4; ++i) {
    const auto row = all.ids.begin() + static_cast<long>(i / 2 * 8);
    const auto at = std::find(row, row + 8, given[i]) - all.ids.begin();
    EXPECT_EQ(replayed.weights[i], all.weights[static_cast<size_t>(at)]);
  }
}

TEST(Router, RefusesGivenExpertsOutOfRangeOrTwiceAndBadShapes) {
  const std::vector<float> logits(8, 0.0f);
  for (const std::vector<int32_t>& given :
       {std::vector<int32_t>{0, 8}, std::vector<int32_t>{-1, 0}, std::vector<int32_t>{3, 3}}) {
    EXPECT_THROW(route(logits, 1, 8, 2, true, given.data()), std::invalid_argument);
  }
  EXPECT_THROW(route(logits, 1, 8, 9, true), std::invalid_argument);
  EXPECT_THROW(route(logits, 1, 8, 0, true), std::invalid_argument);
  EXPECT_THROW(router_cpu({.num_experts = 513, .top_k = 1}), std::invalid_argument);
  EXPECT_TRUE(route({}, 0, 8, 2, true).ids.empty());
}

struct Layer {
  TestWeight gate, up, down;
  int32_t top_k;

  Layer(TestFormat format, int32_t experts, int32_t hidden, int32_t intermediate, int32_t k,
        std::mt19937& rng)
      : gate(random_weight(format, experts, intermediate, hidden, rng)),
        up(random_weight(format, experts, intermediate, hidden, rng)),
        down(random_weight(format, experts, hidden, intermediate, rng)),
        top_k(k) {}

  MoeParams params(int32_t tokens) const {
    return {
        .gate = gate.view, .up = up.view, .down = down.view, .num_tokens = tokens, .top_k = top_k};
  }

  std::vector<float> run(const std::vector<float>& x, const Routed& routed, int32_t tokens,
                         Dtype round_to = Dtype::kF32) const {
    MoeParams p = params(tokens);
    std::vector<float> scratch = poisoned(moe_scratch_floats(p) + 1);
    std::vector<float> y = poisoned(int64_t{tokens} * gate.view.cols);
    p.x = x.data();
    p.topk_ids = routed.ids.data();
    p.topk_weights = routed.weights.data();
    p.y = y.data();
    p.scratch = scratch.data();
    p.round_to = round_to;
    moe_cpu(p);
    EXPECT_TRUE(std::isnan(scratch.back())) << "wrote past its scratch";
    return y;
  }

  std::vector<double> reference(const float* x, const int32_t* ids, const float* weights) const {
    const auto hidden = static_cast<size_t>(gate.view.cols);
    const auto intermediate = static_cast<size_t>(gate.view.rows);
    std::vector<double> y(hidden, 0.0), h(intermediate);
    for (int32_t k = 0; k < top_k; ++k) {
      const size_t expert = static_cast<size_t>(ids[k]) * intermediate * hidden;
      for (size_t i = 0; i < intermediate; ++i) {
        double g = 0.0, u = 0.0;
        for (size_t c = 0; c < hidden; ++c) {
          g += gate.values[expert + i * hidden + c] * x[c];
          u += up.values[expert + i * hidden + c] * x[c];
        }
        h[i] = g / (1.0 + std::exp(-g)) * u;
      }
      for (size_t d = 0; d < hidden; ++d) {
        for (size_t i = 0; i < intermediate; ++i) {
          y[d] += weights[k] * down.values[expert + d * intermediate + i] * h[i];
        }
      }
    }
    return y;
  }
};

Routed random_routes(int32_t tokens, int32_t experts, int32_t k, std::mt19937& rng) {
  return route(random_floats(int64_t{tokens} * experts, rng, 2.0f), tokens, experts, k, true);
}

TEST(Moe, AgreesWithF64InEveryFormatAndShape) {
  std::mt19937 rng(63);
  struct Shape {
    int32_t experts, hidden, intermediate, k, tokens;
  };
  for (const TestFormat format : kAllFormats) {
    SCOPED_TRACE(name_of(format));
    for (const Shape s : {Shape{1, 32, 32, 1, 1}, Shape{8, 64, 32, 2, 5}, Shape{5, 33, 19, 3, 4},
                          Shape{3, 96, 64, 2, 70}, Shape{4, 32, 96, 4, 129}}) {
      const bool mxfp8 = format == TestFormat::kMxfp8;
      const int32_t hidden = mxfp8 ? (s.hidden + 31) / 32 * 32 : s.hidden;
      const int32_t intermediate = mxfp8 ? (s.intermediate + 31) / 32 * 32 : s.intermediate;
      const Layer layer(format, s.experts, hidden, intermediate, s.k, rng);
      const auto x = random_floats(int64_t{s.tokens} * hidden, rng);
      const Routed routed = random_routes(s.tokens, s.experts, s.k, rng);
      const auto y = layer.run(x, routed, s.tokens);
      for (int32_t t = 0; t < s.tokens; ++t) {
        const auto wanted = layer.reference(x.data() + t * hidden, routed.ids.data() + t * s.k,
                                            routed.weights.data() + t * s.k);
        double squares = 0.0;
        for (const double v : wanted) squares += v * v;
        const double bar = 1e-5 * std::sqrt(squares / hidden);
        for (int32_t d = 0; d < hidden; ++d) {
          ASSERT_NEAR(y[size_t(t) * hidden + d], wanted[size_t(d)], bar) << "token " << t;
        }
      }
    }
  }
}

TEST(Moe, ATokenHasTheSameBitsAloneInAnyBatchAndWithAnyThreadCount) {
  std::mt19937 rng(64);
  const int32_t hidden = 96, tokens = 300, k = 2, experts = 8;  // several tiles and threads
  const Layer layer(TestFormat::kMxfp8, experts, hidden, 64, k, rng);
  const auto x = random_floats(tokens * hidden, rng);
  const Routed routed = random_routes(tokens, experts, k, rng);
  const auto wanted = layer.run(x, routed, tokens);
  testing::with_thread_counts([&] { EXPECT_TRUE(layer.run(x, routed, tokens) == wanted); });
  for (int32_t t = 0; t < tokens; ++t) {
    const std::vector<float> alone_x(x.begin() + t * hidden, x.begin() + (t + 1) * hidden);
    const Routed alone{{routed.ids.begin() + t * k, routed.ids.begin() + (t + 1) * k},
                       {routed.weights.begin() + t * k, routed.weights.begin() + (t + 1) * k}};
    const auto y = layer.run(alone_x, alone, 1);
    ASSERT_TRUE(std::equal(y.begin(), y.end(), wanted.begin() + t * hidden)) << "token " << t;
  }
}

TEST(Moe, AllTokensMayShareOneExpert) {
  std::mt19937 rng(65);
  const Layer layer(TestFormat::kBf16, 4, 32, 48, 1, rng);
  const auto x = random_floats(100 * 32, rng);
  const Routed routed{std::vector<int32_t>(100, 2), std::vector<float>(100, 1.0f)};
  const auto y = layer.run(x, routed, 100);
  for (int32_t t = 0; t < 100; t += 33) {
    const auto wanted = layer.reference(x.data() + t * 32, &routed.ids[0], &routed.weights[0]);
    for (size_t d = 0; d < 32; ++d) {
      ASSERT_NEAR(y[size_t(t) * 32 + d], wanted[d], 1e-5 * (1.0 + std::fabs(wanted[d])));
    }
  }
}

TEST(Moe, RoundsItsOutputOnce) {
  std::mt19937 rng(66);
  const Layer layer(TestFormat::kBf16, 4, 32, 16, 2, rng);
  const auto x = random_floats(3 * 32, rng);
  const Routed routed = random_routes(3, 4, 2, rng);
  const auto exact = layer.run(x, routed, 3);
  const auto rounded = layer.run(x, routed, 3, Dtype::kBf16);
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(rounded[i], bf16_to_f32(f32_to_bf16(exact[i])));
  }
}

TEST(Moe, RefusesExpertsOutOfRangeAndShapesThatDoNotFit) {
  std::mt19937 rng(67);
  const Layer layer(TestFormat::kBf16, 4, 32, 16, 1, rng);
  const auto x = random_floats(32, rng);
  EXPECT_THROW(layer.run(x, {{4}, {1.0f}}, 1), std::invalid_argument);
  EXPECT_THROW(layer.run(x, {{-1}, {1.0f}}, 1), std::invalid_argument);
  EXPECT_TRUE(layer.run({}, {}, 0).empty());
  MoeParams params = layer.params(0);
  params.down = params.gate;
  EXPECT_THROW(moe_cpu(params), std::invalid_argument);
  params = layer.params(0);
  params.top_k = 17;
  EXPECT_THROW(moe_cpu(params), std::invalid_argument);
  params = layer.params(1);
  EXPECT_THROW(moe_cpu(params), std::invalid_argument);  // null pointers
}

}  // namespace
}  // namespace warproll
