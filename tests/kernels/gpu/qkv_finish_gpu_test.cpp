// qkv_finish on the GPU: the bits of its CPU twins, and only in its slots.
#include <climits>
#include <stdexcept>
#include <string>

#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/step/qkv_finish.h"
#include "step_support.h"

namespace warproll {
namespace {

using namespace testing;  // gpu_support.h, step_support.h

struct QkvInputs {
  int32_t tokens, heads, kv_heads, dim;
  int64_t slots;
  Bits qkv;
  std::vector<std::byte> q_norm, k_norm;  // empty: no norm
  Dtype dtype;
  std::vector<int32_t> positions, slot_mapping;
};
struct QkvOutputs {
  Bits q, k_cache, v_cache;
  int32_t num_invalid = 0;
};
constexpr float kEps = 1e-2f;  // large: a norm that forgets it is seen
constexpr int32_t kMaxPositions = 4000;
constexpr double kTheta = 1e6;

QkvInputs qkv_inputs(int32_t tokens, int32_t heads, int32_t kv_heads, int32_t dim, Dtype dtype,
                     std::mt19937& rng) {
  QkvInputs in{tokens, heads, kv_heads, dim, 2 * tokens + 3, {}, {}, {}, dtype, {}, {}};
  in.qkv = random_bf16(count_of(tokens, heads + 2 * kv_heads, dim), rng, 2.0f);
  in.q_norm = random_weights(static_cast<size_t>(dim), dtype, rng, 1.0f, 0.3f);
  in.k_norm = random_weights(static_cast<size_t>(dim), dtype, rng, 1.0f, 0.3f);
  std::vector<int32_t> free(static_cast<size_t>(in.slots));
  for (size_t i = 0; i < free.size(); ++i) free[i] = static_cast<int32_t>(i);
  std::shuffle(free.begin(), free.end(), rng);
  in.slot_mapping.assign(free.begin(), free.begin() + tokens);
  for (int32_t t = 0; t < tokens; ++t) {
    in.positions.push_back(t == 0   ? kMaxPositions - 1
                           : t == 1 ? 0
                                    : static_cast<int32_t>(rng() % kMaxPositions));
  }
  return in;
}

QkvOutputs run_qkv(const QkvInputs& in, bool older = false) {
  const size_t table_size = count_of(kMaxPositions, in.dim / 2);
  std::vector<float> cos(table_size), sin(table_size);
  fill_rope_tables(kMaxPositions, in.dim, kTheta, cos.data(), sin.data());
  const Guarded<float> device_cos(cos), device_sin(sin);
  const Guarded<uint16_t> qkv(in.qkv), q(count_of(in.tokens, in.heads, in.dim)),
      k_cache(count_of(in.slots, in.kv_heads, in.dim)),
      v_cache(count_of(in.slots, in.kv_heads, in.dim));
  const Guarded<std::byte> q_norm(in.q_norm), k_norm(in.k_norm);
  const Guarded<int32_t> positions(in.positions), slots(in.slot_mapping),
      invalid(std::vector<int32_t>{0});
  QkvFinishParams p;
  p.qkv = qkv.data();
  p.q_norm = in.q_norm.empty() ? nullptr : q_norm.data();
  p.k_norm = in.k_norm.empty() ? nullptr : k_norm.data();
  p.norm_dtype = in.dtype;
  p.eps = kEps;
  p.cos = device_cos.data();
  p.sin = device_sin.data();
  p.positions = positions.data();
  p.slot_mapping = slots.data();
  p.q = q.data();
  p.k_cache = k_cache.data();
  p.v_cache = v_cache.data();
  p.num_invalid = invalid.data();
  p.num_slots = in.slots;
  p.max_positions = kMaxPositions;
  p.num_tokens = in.tokens;
  p.num_heads = in.heads;
  p.num_kv_heads = in.kv_heads;
  p.head_dim = in.dim;
  p.indices_are_older = older;
  qkv_finish(p, nullptr);
  static_cast<void>(qkv.read());
  return {q.read(), k_cache.read(), v_cache.read(), invalid.read()[0]};
}

// Heads [first, first + count) of every token, as floats, normed where there is a weight.
std::vector<float> heads_of(const QkvInputs& in, int32_t first, int32_t count,
                            const std::vector<std::byte>& norm) {
  std::vector<float> out;
  const int64_t all = in.heads + 2 * in.kv_heads;
  for (int64_t t = 0; t < in.tokens; ++t) {
    for (int64_t i = (t * all + first) * in.dim; i < (t * all + first + count) * in.dim; ++i) {
      out.push_back(bf16_to_f32(in.qkv[static_cast<size_t>(i)]));
    }
  }
  if (norm.empty()) return out;
  rmsnorm_cpu({.x = out.data(),
               .weight = norm.data(),
               .weight_dtype = in.dtype,
               .y = out.data(),
               .num_rows = int64_t{in.tokens} * count,
               .row_size = in.dim,
               .eps = kEps});
  return out;
}

// The twins; all positions and slots valid but for slots outside the cache, which write to spare ones.
QkvOutputs qkv_of_twins(const QkvInputs& in) {
  std::vector<float> q = heads_of(in, 0, in.heads, in.q_norm);
  const std::vector<float> k = heads_of(in, in.heads, in.kv_heads, in.k_norm),
                           v = heads_of(in, in.heads + in.kv_heads, in.kv_heads, {});
  const size_t angles = count_of(in.tokens, in.dim / 2);
  std::vector<float> cos(angles), sin(angles);
  rope_angles_cpu({.positions = in.positions.data(),
                   .cos = cos.data(),
                   .sin = sin.data(),
                   .num_tokens = in.tokens,
                   .head_dim = in.dim,
                   .theta = kTheta});
  std::vector<int32_t> slots = in.slot_mapping;
  for (int32_t& slot : slots) {
    if (slot < 0 || slot >= in.slots) slot = static_cast<int32_t>(in.slots);
  }
  std::vector<float> k_cache(count_of(in.slots + 1, in.kv_heads, in.dim),
                             std::bit_cast<float>(0xffff0000u));
  std::vector<float> v_cache = k_cache;
  rope_kv_write_cpu({.q = q.data(),
                     .k = k.data(),
                     .v = v.data(),
                     .cos = cos.data(),
                     .sin = sin.data(),
                     .slot_mapping = slots.data(),
                     .k_cache = k_cache.data(),
                     .v_cache = v_cache.data(),
                     .num_slots = in.slots + 1,
                     .num_tokens = in.tokens,
                     .num_heads = in.heads,
                     .num_kv_heads = in.kv_heads,
                     .head_dim = in.dim,
                     .round_to = Dtype::kBf16});
  const size_t size = count_of(in.slots, in.kv_heads, in.dim);
  k_cache.resize(size);
  v_cache.resize(size);
  return {to_bits(q), to_bits(k_cache), to_bits(v_cache), 0};
}

struct HeadShape {
  int32_t heads, kv_heads, dim;
};

TEST(QkvFinishGpu, HasTheBitsOfItsTwinsAndWritesOnlyItsSlots) {
  SKIP_WITHOUT_GPU();
  std::mt19937 rng(81);
  for (const HeadShape& s : {HeadShape{6, 3, 16},
                             {4, 2, 32},
                             {4, 2, 64},
                             {32, 4, 64},
                             {4, 2, 128},
                             {32, 4, 128},
                             {3, 1, 96},
                             {5, 1, 192},
                             {2, 2, 256}}) {
    for (const int32_t tokens : kTokenCounts) {
      for (const bool norm : {true, false}) {
        const Dtype dtype = kWeightDtypes[rng() % 3];
        SCOPED_TRACE(std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + ", D " +
                     std::to_string(s.dim) + ", T " + std::to_string(tokens) +
                     (norm ? ", norm " + std::string(to_string(dtype)) : ""));
        QkvInputs in = qkv_inputs(tokens, s.heads, s.kv_heads, s.dim, dtype, rng);
        if (!norm) in.q_norm.clear(), in.k_norm.clear();
        const QkvOutputs got = run_qkv(in), want = qkv_of_twins(in);
        ASSERT_EQ(got.q, want.q);
        ASSERT_EQ(got.k_cache, want.k_cache);
        ASSERT_EQ(got.v_cache, want.v_cache);
        ASSERT_EQ(got.num_invalid, 0);
        const QkvOutputs early = run_qkv(in, /*older=*/true);
        ASSERT_EQ(early.q, want.q);
        ASSERT_EQ(early.k_cache, want.k_cache);
      }
    }
  }
}

TEST(QkvFinishGpu, NormsQAloneOrKAlone) {
  SKIP_WITHOUT_GPU();
  std::mt19937 rng(82);
  for (const bool q : {true, false}) {
    QkvInputs in = qkv_inputs(7, 4, 2, 128, Dtype::kBf16, rng);
    (q ? in.k_norm : in.q_norm).clear();
    const QkvOutputs got = run_qkv(in), want = qkv_of_twins(in);
    EXPECT_EQ(got.q, want.q);
    EXPECT_EQ(got.k_cache, want.k_cache);
    EXPECT_EQ(got.v_cache, want.v_cache);
  }
}

TEST(QkvFinishGpu, ASlotOutsideTheCacheWritesNothing) {
  SKIP_WITHOUT_GPU();
  std::mt19937 rng(83);
  QkvInputs in = qkv_inputs(33, 32, 4, 128, Dtype::kBf16, rng);
  in.slot_mapping[0] = -1;
  in.slot_mapping[7] = static_cast<int32_t>(in.slots);
  in.slot_mapping[8] = INT_MAX;
  in.slot_mapping[32] = INT_MIN;
  const QkvOutputs got = run_qkv(in), want = qkv_of_twins(in);
  EXPECT_EQ(got.q, want.q);
  EXPECT_EQ(got.k_cache, want.k_cache);
  EXPECT_EQ(got.v_cache, want.v_cache);
  EXPECT_EQ(got.num_invalid, 0);
}

TEST(QkvFinishGpu, APositionOutsideTheTablesGivesZerosAndIsCounted) {
  SKIP_WITHOUT_GPU();
  std::mt19937 rng(84);
  QkvInputs in = qkv_inputs(20, 32, 4, 128, Dtype::kBf16, rng);
  QkvInputs cpu = in;
  const int32_t bad[] = {0, 5, 11, 19};
  const int32_t positions[] = {-1, kMaxPositions, INT_MAX, INT_MIN};
  for (int i = 0; i < 4; ++i) {
    in.positions[static_cast<size_t>(bad[i])] = positions[i];
    cpu.slot_mapping[static_cast<size_t>(bad[i])] = -1;
  }
  const QkvOutputs got = run_qkv(in);
  QkvOutputs want = qkv_of_twins(cpu);
  for (const int32_t t : bad) std::fill_n(want.q.begin() + t * 32 * 128, 32 * 128, uint16_t{0});
  EXPECT_EQ(got.q, want.q);
  EXPECT_EQ(got.k_cache, want.k_cache);
  EXPECT_EQ(got.v_cache, want.v_cache);
  EXPECT_EQ(got.num_invalid, 4);
}

TEST(QkvFinishGpu, ATokensBitsDoNotDependOnItsBatch) {
  SKIP_WITHOUT_GPU();
  std::mt19937 rng(85);
  const QkvInputs in = qkv_inputs(130, 32, 4, 128, Dtype::kBf16, rng);
  const QkvOutputs whole = run_qkv(in), again = run_qkv(in);
  ASSERT_EQ(whole.q, again.q);
  ASSERT_EQ(whole.k_cache, again.k_cache);
  for (const std::vector<int32_t>& picks : {std::vector<int32_t>{0}, {129}, {64, 3, 17}}) {
    QkvInputs some = in;
    some.tokens = static_cast<int32_t>(picks.size());
    some.qkv = rows_of(in.qkv, 40 * 128, picks);
    some.positions = rows_of(in.positions, 1, picks);
    some.slot_mapping = rows_of(in.slot_mapping, 1, picks);
    const QkvOutputs got = run_qkv(some);
    ASSERT_EQ(got.q, rows_of(whole.q, 32 * 128, picks));
    for (const int32_t slot : some.slot_mapping) {
      ASSERT_EQ(rows_of(got.k_cache, 4 * 128, {slot}), rows_of(whole.k_cache, 4 * 128, {slot}));
      ASSERT_EQ(rows_of(got.v_cache, 4 * 128, {slot}), rows_of(whole.v_cache, 4 * 128, {slot}));
    }
  }
}

TEST(QkvFinishGpu, RefusesBadShapes) {
  const auto at = [](uintptr_t address) { return reinterpret_cast<void*>(address); };  // never read
  using P = QkvFinishParams;
  P good;
  good.qkv = good.q = good.k_cache = good.v_cache = static_cast<uint16_t*>(at(256));
  good.cos = good.sin = static_cast<float*>(at(256));
  good.positions = good.slot_mapping = static_cast<int32_t*>(at(256));
  good.num_slots = good.max_positions = 10;
  good.num_tokens = 1;
  good.num_heads = 4;
  good.num_kv_heads = 2;
  good.head_dim = 64;
  const auto refused = [&](const auto& change) {
    P p = good;
    change(p);
    EXPECT_THROW(qkv_finish(p, nullptr), std::invalid_argument);
  };
  refused([](P& p) { p.num_tokens = -1; });
  for (const int32_t dim : {0, 8, 40, 272}) refused([&](P& p) { p.head_dim = dim; });
  refused([](P& p) { p.num_heads = 0; });
  refused([](P& p) { p.num_kv_heads = 0; });
  refused([](P& p) { p.num_slots = 0; });
  refused([](P& p) { p.max_positions = 0; });
  refused([](P& p) { p.norm_dtype = Dtype::kU8; });
  refused([](P& p) { p.qkv = nullptr; });
  refused([](P& p) { p.slot_mapping = nullptr; });
  refused([](P& p) { p.cos = p.cos + 1; });
  refused([](P& p) { p.k_cache = p.k_cache + 4; });
  float none = 0;
  EXPECT_THROW(fill_rope_tables(0, 64, 1e4, &none, &none), std::invalid_argument);
  EXPECT_THROW(fill_rope_tables(2, 63, 1e4, &none, &none), std::invalid_argument);
}

}  // namespace
}  // namespace warproll
