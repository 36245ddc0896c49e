#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "op_support.h"

namespace warproll {
namespace {

using testing::poisoned;
using testing::random_floats;

// Sequences in a paged cache with shuffled blocks; slots that no sequence owns hold NaN, so that a
// read past a context is seen.
struct Paged {
  int32_t num_heads = 4, num_kv_heads = 2, head_dim = 32, block_tokens = 16;
  std::vector<int32_t> contexts;         // [B]
  std::vector<std::vector<float>> k, v;  // [B] of [context, num_kv_heads, D]
  std::vector<std::vector<float>> q;     // [B] of [context, num_heads, D]
  std::vector<float> k_cache, v_cache;
  std::vector<int32_t> block_table;
  int32_t num_blocks = 0, blocks_per_sequence = 0;

  void fill(std::mt19937& rng) {
    for (const int32_t context : contexts) {
      k.push_back(random_floats(int64_t{context} * num_kv_heads * head_dim, rng));
      v.push_back(random_floats(int64_t{context} * num_kv_heads * head_dim, rng));
      q.push_back(random_floats(int64_t{context} * num_heads * head_dim, rng));
    }
    page(rng);
  }

  void page(std::mt19937& rng) {
    blocks_per_sequence = 0;
    num_blocks = 3;  // some that nobody owns
    for (const int32_t context : contexts) {
      const int32_t blocks = (context + block_tokens - 1) / block_tokens;
      blocks_per_sequence = std::max(blocks_per_sequence, blocks);
      num_blocks += blocks;
    }
    std::vector<int32_t> order(static_cast<size_t>(num_blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng);
    const size_t slot_size = size_t(num_kv_heads) * head_dim;
    k_cache = poisoned(int64_t{num_blocks} * block_tokens * num_kv_heads * head_dim);
    v_cache = k_cache;
    block_table.assign(contexts.size() * blocks_per_sequence, -7);
    for (size_t b = 0; b < contexts.size(); ++b) {
      for (int32_t j = 0; j < contexts[b]; ++j) {
        int32_t& block = block_table[b * blocks_per_sequence + j / block_tokens];
        if (j % block_tokens == 0) {
          block = order.back();
          order.pop_back();
        }
        const size_t slot = size_t(block) * block_tokens + j % block_tokens;
        std::copy_n(k[b].begin() + j * slot_size, slot_size, k_cache.begin() + slot * slot_size);
        std::copy_n(v[b].begin() + j * slot_size, slot_size, v_cache.begin() + slot * slot_size);
      }
    }
  }

  // Attention of positions [first[b], last[b]) of every sequence, packed.
  std::vector<float> run(const std::vector<int32_t>& first,
                         const std::vector<int32_t>& last) const {
    std::vector<float> packed;
    std::vector<int32_t> positions, cu_seqlens{0};
    const auto size = static_cast<int64_t>(num_heads) * head_dim;
    for (size_t b = 0; b < contexts.size(); ++b) {
      packed.insert(packed.end(), q[b].begin() + first[b] * size, q[b].begin() + last[b] * size);
      for (int32_t p = first[b]; p < last[b]; ++p) positions.push_back(p);
      cu_seqlens.push_back(static_cast<int32_t>(positions.size()));
    }
    std::vector<float> out = poisoned(static_cast<int64_t>(packed.size()));
    attention_cpu(params(packed, positions, cu_seqlens, out));
    return out;
  }

  AttentionParams params(const std::vector<float>& packed, const std::vector<int32_t>& positions,
                         const std::vector<int32_t>& cu_seqlens, std::vector<float>& out) const {
    return {.q = packed.data(),
            .k_cache = k_cache.data(),
            .v_cache = v_cache.data(),
            .positions = positions.data(),
            .cu_seqlens_q = cu_seqlens.data(),
            .block_table = block_table.data(),
            .out = out.data(),
            .num_sequences = static_cast<int32_t>(cu_seqlens.size()) - 1,
            .num_tokens = static_cast<int32_t>(positions.size()),
            .num_heads = num_heads,
            .num_kv_heads = num_kv_heads,
            .head_dim = head_dim,
            .num_blocks = num_blocks,
            .block_tokens = block_tokens,
            .blocks_per_sequence = blocks_per_sequence,
            .scale = 1.0f / std::sqrt(static_cast<float>(head_dim))};
  }

  std::vector<float> all() const { return run(std::vector<int32_t>(contexts.size(), 0), contexts); }

  // Softmax in F64 over the plain K and V.
  double reference(size_t b, int32_t position, int32_t head, int32_t d) const {
    const int32_t kv_head = head / (num_heads / num_kv_heads);
    std::vector<double> scores;
    for (int32_t j = 0; j <= position; ++j) {
      double dot = 0.0;
      for (int32_t i = 0; i < head_dim; ++i) {
        dot += double{q[b][(size_t(position) * num_heads + head) * head_dim + i]} *
               k[b][(size_t(j) * num_kv_heads + kv_head) * head_dim + i];
      }
      scores.push_back(dot / std::sqrt(static_cast<double>(head_dim)));
    }
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0.0, out = 0.0;
    for (int32_t j = 0; j <= position; ++j) {
      const double p = std::exp(scores[size_t(j)] - max);
      sum += p;
      out += p * v[b][(size_t(j) * num_kv_heads + kv_head) * head_dim + d];
    }
    return out / sum;
  }
};

Paged make(const std::vector<int32_t>& contexts, std::mt19937& rng, int32_t num_heads = 4,
           int32_t num_kv_heads = 2, int32_t head_dim = 32, int32_t block_tokens = 16) {
  Paged paged;
  paged.num_heads = num_heads;
  paged.num_kv_heads = num_kv_heads;
  paged.head_dim = head_dim;
  paged.block_tokens = block_tokens;
  paged.contexts = contexts;
  paged.fill(rng);
  return paged;
}

TEST(Attention, AgreesWithF64AroundChunkBordersAndForOddShapes) {
  std::mt19937 rng(41);
  struct Shape {
    int32_t heads, kv_heads, head_dim, block_tokens;
  };
  // F32 sums over the context: the bar is 1e-5 of |V|, which is about 4 at most here.
  constexpr double kTolerance = 4e-5;
  for (const Shape s : {Shape{4, 2, 32, 16}, Shape{6, 3, 16, 8}, Shape{3, 1, 18, 1},
                        Shape{2, 2, 2, 5}, Shape{2, 1, 128, 64}, Shape{1, 1, 80, 7}}) {
    const Paged paged =
        make({1, 63, 64, 65, 130}, rng, s.heads, s.kv_heads, s.head_dim, s.block_tokens);
    const std::vector<float> out = paged.all();
    size_t at = 0;
    for (size_t b = 0; b < paged.contexts.size(); ++b) {
      for (int32_t position = 0; position < paged.contexts[b]; ++position) {
        for (int32_t head = 0; head < s.heads; ++head) {
          for (int32_t d = 0; d < s.head_dim; ++d, ++at) {
            if (position % 9 != 0 && position != paged.contexts[b] - 1) continue;
            ASSERT_NEAR(out[at], paged.reference(b, position, head, d), kTolerance)
                << "D " << s.head_dim << " sequence " << b << " position " << position;
          }
        }
      }
    }
  }
}

TEST(Attention, ATokenHasTheSameBitsInAnyBatchChunkingBlockSizeAndThreadCount) {
  std::mt19937 rng(42);
  Paged paged = make({200, 1, 77, 129}, rng);
  const std::vector<float> wanted = paged.all();
  const auto size = static_cast<int64_t>(paged.num_heads) * paged.head_dim;
  testing::with_thread_counts([&] { EXPECT_TRUE(paged.all() == wanted); });
  for (const int32_t block_tokens : {1, 16, 48}) {
    paged.block_tokens = block_tokens;
    paged.page(rng);
    int64_t at = 0;  // of the sequence's first token in `wanted`
    for (size_t b = 0; b < paged.contexts.size(); ++b) {
      for (const int32_t chunk : {1, 7, 64, 200}) {
        for (int32_t begin = 0; begin < paged.contexts[b]; begin += chunk) {
          std::vector<int32_t> first(paged.contexts.size(), 0), last = first;
          first[b] = begin;
          last[b] = std::min(begin + chunk, paged.contexts[b]);
          const std::vector<float> out = paged.run(first, last);
          ASSERT_TRUE(std::equal(out.begin(), out.end(), wanted.begin() + at + begin * size))
              << "sequence " << b << " chunk " << chunk << " at " << begin;
        }
      }
      at += paged.contexts[b] * size;
    }
  }
}

TEST(Attention, LargeScoresDoNotOverflow) {
  std::mt19937 rng(43);
  Paged paged = make({100}, rng);
  for (float& v : paged.q[0]) v *= 1e4f;
  for (const float v : paged.all()) EXPECT_TRUE(std::isfinite(v));
}

TEST(Attention, RoundsItsOutputOnce) {
  std::mt19937 rng(44);
  const Paged paged = make({70}, rng);
  const std::vector<float> exact = paged.all();
  std::vector<int32_t> positions(70), cu_seqlens{0, 70};
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<float> out = poisoned(static_cast<int64_t>(exact.size()));
  AttentionParams params = paged.params(paged.q[0], positions, cu_seqlens, out);
  params.round_to = Dtype::kBf16;
  attention_cpu(params);
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], bf16_to_f32(f32_to_bf16(exact[i])));
  }
}

TEST(Attention, RefusesWhatItWouldReadOutOfBounds) {
  std::mt19937 rng(45);
  const Paged paged = make({20}, rng);
  std::vector<float> out(size_t{4} * 32);
  const std::vector<float> q(out.size());
  const std::vector<int32_t> cu_seqlens{0, 1};
  const auto run = [&](int32_t position, const auto& change) {
    const std::vector<int32_t> positions{position};
    AttentionParams params = paged.params(q, positions, cu_seqlens, out);
    change(params);
    attention_cpu(params);
  };
  const std::vector<int32_t> bad_table{0, 99};
  EXPECT_NO_THROW(run(19, [](AttentionParams&) {}));
  EXPECT_THROW(run(32, [](AttentionParams&) {}), std::invalid_argument);
  EXPECT_THROW(run(-1, [](AttentionParams&) {}), std::invalid_argument);
  EXPECT_THROW(run(19, [&](AttentionParams& p) { p.block_table = bad_table.data(); }),
               std::invalid_argument);
  EXPECT_THROW(run(19, [](AttentionParams& p) { p.num_kv_heads = 3; }), std::invalid_argument);
  EXPECT_THROW(run(19, [](AttentionParams& p) { p.head_dim = 513; }), std::invalid_argument);
  EXPECT_THROW(run(19, [](AttentionParams& p) { p.num_tokens = 2; }), std::invalid_argument);
  EXPECT_THROW(run(19, [](AttentionParams& p) { p.out = nullptr; }), std::invalid_argument);
  attention_cpu({.num_heads = 1, .num_kv_heads = 1, .head_dim = 2, .block_tokens = 1});
}

}  // namespace
}  // namespace warproll
