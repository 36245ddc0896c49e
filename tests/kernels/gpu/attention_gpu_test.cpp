// Paged attention on the GPU against F64 sums and its CPU twin.
#include <array>
#include <limits>
#include <stdexcept>
#include <string>

#include "attention_support.h"
#include "kernels/attention.h"

namespace warproll {
namespace {

using namespace testing;  // gpu_support.h, attention_support.h

double ulp_bf16(double x) {
  const double size = std::max(std::fabs(x), 0x1p-126);
  return std::ldexp(1.0, std::ilogb(size) - 7);
}

// One head of one position in F64, and the largest |V| of its context.
struct Exact {
  std::vector<double> out;
  double largest_value = 0;
};
Exact exact(const Shape& s, const Sequence& sequence, int32_t position, int32_t head) {
  const auto dim = static_cast<size_t>(s.dim);
  const size_t kv_head = static_cast<size_t>(head / (s.heads / s.kv_heads));
  const uint16_t* q = sequence.q.data() + static_cast<size_t>(position) * s.q_row() +
                      static_cast<size_t>(head) * dim;
  std::vector<double> scores(static_cast<size_t>(position) + 1);
  for (size_t j = 0; j < scores.size(); ++j) {
    const uint16_t* k = sequence.k.data() + j * s.kv_row() + kv_head * dim;
    for (size_t d = 0; d < dim; ++d) scores[j] += double{bf16_to_f32(q[d])} * bf16_to_f32(k[d]);
    scores[j] *= s.scale();
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  Exact e{std::vector<double>(dim), 0};
  for (size_t j = 0; j < scores.size(); ++j) {
    const uint16_t* v = sequence.v.data() + j * s.kv_row() + kv_head * dim;
    const double p = std::exp(scores[j] - max);
    sum += p;
    for (size_t d = 0; d < dim; ++d) {
      e.out[d] += p * bf16_to_f32(v[d]);
      e.largest_value = std::max(e.largest_value, std::fabs(double{bf16_to_f32(v[d])}));
    }
  }
  for (double& x : e.out) x /= sum;
  return e;
}

// Every `stride`-th token, and the last of every piece.
void expect_near_f64(const Shape& s, const std::vector<Piece>& pieces,
                     const std::vector<uint16_t>& out, int32_t stride = 1) {
  size_t token = 0;
  double worst = 0;
  for (const Piece& p : pieces) {
    for (int32_t i = 0; i < p.count; ++i, ++token) {
      if (i % stride != 0 && i + 1 != p.count) continue;
      for (int32_t head = 0; head < s.heads; ++head) {
        const Exact want = exact(s, *p.sequence, p.first + i, head);
        for (size_t d = 0; d < want.out.size(); ++d) {
          const size_t at = token * s.q_row() + static_cast<size_t>(head) * want.out.size() + d;
          const double bound = 0.5 * ulp_bf16(want.out[d]) * (1 + 1e-6) +
                               double{kAttentionTolerance} * want.largest_value;
          const double error = std::fabs(bf16_to_f32(out[at]) - want.out[d]);
          worst = std::max(worst, error / bound);
          ASSERT_LE(error, bound) << "position " << p.first + i << ", head " << head << ", dim "
                                  << d << ", wanted " << want.out[d];
        }
      }
    }
  }
  ::testing::Test::RecordProperty("worst_error_over_bound", std::to_string(worst));
}

// Both are within their tolerance of F64, and rounded.
void expect_near_cpu(const Shape& s, const Batch& b, const Paging& paging,
                     const std::vector<uint16_t>& out) {
  const auto widen = [](const std::vector<uint16_t>& bits) {
    std::vector<float> values(bits.size());
    for (size_t i = 0; i < bits.size(); ++i) values[i] = bf16_to_f32(bits[i]);
    return values;
  };
  const std::vector<float> q = widen(b.q), k = widen(b.k_cache), v = widen(b.v_cache);
  std::vector<float> want(q.size());
  AttentionParams p;
  p.q = q.data();
  p.k_cache = k.data();
  p.v_cache = v.data();
  p.positions = b.positions.data();
  p.cu_seqlens_q = b.cu_seqlens.data();
  p.block_table = b.block_table.data();
  p.out = want.data();
  p.num_sequences = static_cast<int32_t>(b.cu_seqlens.size()) - 1;
  p.num_tokens = static_cast<int32_t>(b.positions.size());
  p.num_heads = s.heads;
  p.num_kv_heads = s.kv_heads;
  p.head_dim = s.dim;
  p.num_blocks = b.num_blocks;
  p.block_tokens = paging.block_tokens;
  p.blocks_per_sequence = b.blocks_per_sequence;
  p.scale = s.scale();
  p.round_to = Dtype::kBf16;
  attention_cpu(p);
  double largest = 0;
  for (const float x : v) {
    if (!std::isnan(x)) largest = std::max(largest, std::fabs(double{x}));
  }
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(bf16_to_f32(out[i]), want[i],
                ulp_bf16(want[i]) + (double{kAttentionTolerance} + 1e-5) * largest)
        << "element " << i;
  }
}

void expect_right(const Shape& s, const std::vector<Piece>& pieces, const Paging& paging,
                  int32_t stride = 1) {
  SCOPED_TRACE("heads " + std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + ", D " +
               std::to_string(s.dim) + ", block_tokens " + std::to_string(paging.block_tokens));
  const Batch batch(s, pieces, paging);
  const std::vector<uint16_t> out = DeviceBatch(s, batch, paging).run();
  expect_near_f64(s, pieces, out, stride);
  expect_near_cpu(s, batch, paging, out);
}

TEST(AttentionGpu, DecodeOfEveryContextLengthIsRight) {
  SKIP_WITHOUT_GPU();
  const Sequence sequence(kQwen3, 3000, 11);
  for (const int32_t context :
       {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1023, 1024, 1025, 2049, 3000}) {
    SCOPED_TRACE("context " + std::to_string(context));
    expect_right(kQwen3, {{&sequence, context - 1, 1}}, {});
  }
}

TEST(AttentionGpu, EveryShapeIsRightInMixedBatches) {
  SKIP_WITHOUT_GPU();
  const int32_t block_sizes[] = {16, 1, 24, 64, 8, 128, 16, 16, 7, 16};
  int next = 0;
  for (const Shape& s : {kQwen3,
                         Shape{8, 8, 64},
                         {16, 1, 128},
                         {12, 1, 64},
                         {6, 2, 128},
                         {4, 2, 32},
                         {4, 4, 16},
                         {10, 2, 80},
                         {8, 2, 96},
                         {9, 1, 8}}) {
    const Sequence a(s, 300, 21), b(s, 1100, 22), c(s, 90, 23);
    expect_right(s,
                 {{&a, 0, 1},
                  {&a, 0, 2},
                  {&b, 1099, 1},
                  {&c, 0, 90},
                  {&a, 5, 0},
                  {&b, 1022, 9},
                  {&a, 299, 1},
                  {&b, 60, 8},
                  {&c, 63, 1},
                  {&a, 100, 129}},
                 {.block_tokens = block_sizes[next++]}, 13);
  }
}

TEST(AttentionGpu, LargeScoresAreRight) {
  SKIP_WITHOUT_GPU();
  Shape s = kQwen3;
  s.query_sigma = 6.0f;  // scores of +-20: nearly one-hot
  const Sequence a(s, 700, 31);
  const std::vector<Piece> pieces = {{&a, 699, 1}, {&a, 0, 33}};
  const std::vector<uint16_t> out = run(s, pieces);
  // A score's own F32 error moves its probability: |score| * 2^-23 and the tensor cores' sums.
  expect_near_f64(s, pieces, out);
}

TEST(AttentionGpu, EqualKeysGiveTheMeanOfTheValues) {
  SKIP_WITHOUT_GPU();
  Sequence a(kQwen3, 1200, 32);
  for (size_t i = kQwen3.kv_row(); i < a.k.size(); ++i) a.k[i] = a.k[i % kQwen3.kv_row()];
  expect_right(kQwen3, {{&a, 1199, 1}, {&a, 1190, 9}}, {});
}

TEST(AttentionGpu, NoTokensAreANoOpAndBadShapesAreRefused) {
  SKIP_WITHOUT_GPU();
  const Sequence a(kQwen3, 200, 91);
  DeviceBatch batch(kQwen3, Batch(kQwen3, {{&a, 199, 1}}, {}), {});
  const PagedAttentionParams good = batch.params();
  PagedAttentionParams p = good;
  p.num_tokens = 0;
  p.q = nullptr;
  EXPECT_NO_THROW(paged_attention(p, nullptr));
  const auto refused = [&](auto change) {
    PagedAttentionParams bad = good;
    change(bad);
    EXPECT_THROW(paged_attention(bad, nullptr), std::invalid_argument);
  };
  refused([](auto& q) { q.head_dim = 256; });
  refused([](auto& q) { q.head_dim = 36; });
  refused([](auto& q) { q.num_kv_heads = 5; });
  refused([](auto& q) { q.num_kv_heads = 1; });  // G = 32
  refused([](auto& q) { q.block_tokens = 0; });
  refused([](auto& q) { q.num_sequences = kMaxAttentionSequences + 1; });
  refused([](auto& q) { q.num_sequences = 0; });
  refused([](auto& q) { q.scale = 0.0f; });
  refused([](auto& q) { q.scale = std::numeric_limits<float>::quiet_NaN(); });
  refused([](auto& q) { q.v_cache = nullptr; });
  refused([](auto& q) { q.workspace = nullptr; });
  refused([](auto& q) { q.k_cache += 1; });
  refused([](auto& q) { q.num_blocks = 1 << 30; });
}

}  // namespace
}  // namespace warproll
