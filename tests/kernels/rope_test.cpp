#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "op_support.h"

namespace warproll {
namespace {

using testing::poisoned;
using testing::random_floats;

struct RopeRun {
  std::vector<float> q, k_cache, v_cache;
};

RopeRun rope(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
             const std::vector<int32_t>& positions, const std::vector<int32_t>& slots,
             int32_t heads, int32_t kv_heads, int32_t head_dim, int64_t num_slots,
             Dtype round_to = Dtype::kF32) {
  const auto tokens = static_cast<int32_t>(positions.size());
  std::vector<float> cos = poisoned(int64_t{tokens} * head_dim / 2), sin = cos;
  rope_angles_cpu({.positions = positions.data(),
                   .cos = cos.data(),
                   .sin = sin.data(),
                   .num_tokens = tokens,
                   .head_dim = head_dim,
                   .theta = 1e4});
  RopeRun run{q, poisoned(num_slots * kv_heads * head_dim),
              poisoned(num_slots * kv_heads * head_dim)};
  rope_kv_write_cpu({.q = run.q.data(),
                     .k = k.data(),
                     .v = v.data(),
                     .cos = cos.data(),
                     .sin = sin.data(),
                     .slot_mapping = slots.data(),
                     .k_cache = run.k_cache.data(),
                     .v_cache = run.v_cache.data(),
                     .num_slots = num_slots,
                     .num_tokens = tokens,
                     .num_heads = heads,
                     .num_kv_heads = kv_heads,
                     .head_dim = head_dim,
                     .round_to = round_to});
  return run;
}

TEST(Rope, RotatesEveryPairByItsAngleAndWritesOnlyItsSlots) {
  std::mt19937 rng(51);
  const int32_t heads = 3, kv_heads = 2, dim = 10;
  const std::vector<int32_t> positions{0, 1, 7, 500}, slots{4, 0, 9, 2};
  const auto q = random_floats(4 * heads * dim, rng), k = random_floats(4 * kv_heads * dim, rng),
             v = random_floats(4 * kv_heads * dim, rng);
  const RopeRun run = rope(q, k, v, positions, slots, heads, kv_heads, dim, 11);
  // The F32 angle of position 500 is off by up to 500 * 6e-8.
  constexpr double kTolerance = 2e-4;
  const auto rotated = [&](const std::vector<float>& x, size_t at, int32_t i, int32_t position) {
    const int32_t half = dim / 2;
    const double angle = position * std::pow(1e4, -2.0 * (i % half) / dim);
    const double low = x[at + i % half], high = x[at + i % half + half];
    return i < half ? low * std::cos(angle) - high * std::sin(angle)
                    : high * std::cos(angle) + low * std::sin(angle);
  };
  std::vector<bool> written(11, false);
  for (size_t t = 0; t < 4; ++t) {
    written[slots[t]] = true;
    for (int32_t h = 0; h < heads; ++h) {
      for (int32_t i = 0; i < dim; ++i) {
        const size_t at = (t * heads + h) * dim;
        EXPECT_NEAR(run.q[at + i], rotated(q, at, i, positions[t]), kTolerance);
      }
    }
    for (int32_t h = 0; h < kv_heads; ++h) {
      for (int32_t i = 0; i < dim; ++i) {
        const size_t at = (t * kv_heads + h) * dim, to = (size_t(slots[t]) * kv_heads + h) * dim;
        EXPECT_NEAR(run.k_cache[to + i], rotated(k, at, i, positions[t]), kTolerance);
        EXPECT_EQ(run.v_cache[to + i], v[at + i]);
      }
    }
  }
  for (size_t slot = 0; slot < 11; ++slot) {
    for (size_t i = 0; i < size_t(kv_heads) * dim; ++i) {
      EXPECT_EQ(std::isnan(run.k_cache[slot * kv_heads * dim + i]), !written[slot]);
      EXPECT_EQ(std::isnan(run.v_cache[slot * kv_heads * dim + i]), !written[slot]);
    }
  }
}

TEST(Rope, PositionZeroChangesNothing) {
  std::mt19937 rng(52);
  const auto q = random_floats(16, rng);
  EXPECT_TRUE(rope(q, q, q, {0}, {0}, 1, 1, 16, 1).q == q);
}

TEST(Rope, RoundsQAndTheCacheOnce) {
  std::mt19937 rng(53);
  const auto q = random_floats(2 * 32, rng), k = random_floats(2 * 16, rng),
             v = random_floats(2 * 16, rng);
  const RopeRun exact = rope(q, k, v, {3, 4}, {0, 1}, 2, 1, 16, 2);
  const RopeRun rounded = rope(q, k, v, {3, 4}, {0, 1}, 2, 1, 16, 2, Dtype::kF16);
  const auto expect_rounded = [](const std::vector<float>& from, const std::vector<float>& to) {
    for (size_t i = 0; i < from.size(); ++i) EXPECT_EQ(to[i], f16_to_f32(f32_to_f16(from[i])));
  };
  expect_rounded(exact.q, rounded.q);
  expect_rounded(exact.k_cache, rounded.k_cache);
  expect_rounded(exact.v_cache, rounded.v_cache);
}

TEST(Rope, RefusesSlotsOutsideTheCacheAndOddHeads) {
  const std::vector<float> x(16);
  EXPECT_THROW(rope(x, x, x, {0}, {1}, 1, 1, 16, 1), std::invalid_argument);
  EXPECT_THROW(rope(x, x, x, {0}, {-1}, 1, 1, 16, 1), std::invalid_argument);
  EXPECT_THROW(rope(x, x, x, {0}, {0}, 1, 1, 15, 1), std::invalid_argument);
  EXPECT_THROW(rope(x, x, x, {0}, {0}, 0, 1, 16, 1), std::invalid_argument);
  EXPECT_TRUE(rope({}, {}, {}, {}, {}, 1, 1, 16, 0).q.empty());
}

}  // namespace
}  // namespace warproll
