// What forward() promises beyond the golden values: the same bits in any batch, chunking and with
// any thread count, in every activation dtype; routing replay; copies of blocks; checked input.
#include "rollout/model/forward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "golden.h"
#include "kernels/parallel.h"

namespace warproll::testing {
namespace {

using ::testing::HasSubstr;

constexpr ActivationDtype kAllDtypes[] = {ActivationDtype::kF32, ActivationDtype::kBf16,
                                          ActivationDtype::kF16};
// One of every weight format, tied and dense.
const std::vector<std::string> kModels{"qwen3moe-tiny", "qwen3moe-tiny-tied", "qwen3moe-tiny-mxfp8",
                                       "qwen3moe-tiny-fp8block-ragged"};

std::vector<int32_t> random_ids(size_t count, int32_t vocab, std::mt19937& rng) {
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng() % static_cast<uint32_t>(vocab));
  return ids;
}

std::string label(const std::string& model, ActivationDtype dtype) {
  return model + " " + std::string(to_string(dtype));
}

// 32 sequences of different lengths; every step takes a random piece of each, so that prefill
// chunks and single tokens share batches. The bits must be those of each sequence alone at once.
TEST(Forward, ASequenceHasTheSameBitsInAnyMixedBatchAndChunking) {
  for (const std::string& name : kModels) {
    const LoadedModel model = load_model(name);
    for (const ActivationDtype dtype : kAllDtypes) {
      SCOPED_TRACE(label(name, dtype));
      std::mt19937 rng(71);
      constexpr size_t kSequences = 32;
      const auto vocab = static_cast<size_t>(model.config.vocab_size);
      std::vector<std::vector<int32_t>> ids;
      std::vector<ForwardOutput> alone;
      for (size_t s = 0; s < kSequences; ++s) {
        ids.push_back(random_ids(1 + rng() % 48, model.config.vocab_size, rng));
        ModelRunner runner(model, dtype, 8);
        TestSequence sequence = runner.new_sequence();
        alone.push_back(prefill(runner, sequence, ids.back()));
      }
      ModelRunner runner(model, dtype, 256, 16, 72);
      std::vector<TestSequence> sequences(kSequences);
      for (bool any = true; any;) {
        std::vector<ModelRunner::Piece> pieces;
        std::vector<std::pair<size_t, size_t>> rows;  // (sequence, its token) of each logits row
        for (size_t s = 0; s < kSequences; ++s) {
          const auto begin = static_cast<size_t>(sequences[s].context);
          const size_t count =
              std::min(ids[s].size() - begin, rng() % 3 == 0 ? rng() % 24 : size_t{1});
          if (count == 0) continue;
          pieces.push_back({&sequences[s],
                            {ids[s].begin() + static_cast<long>(begin),
                             ids[s].begin() + static_cast<long>(begin + count)}});
          for (size_t i = 0; i < count; ++i) rows.emplace_back(s, begin + i);
        }
        const ForwardOutput out = runner.step(pieces);
        for (size_t row = 0; row < rows.size(); ++row) {
          const auto [s, token] = rows[row];
          const auto begin = out.logits.begin() + static_cast<long>(row * vocab);
          ASSERT_TRUE(std::equal(begin, begin + static_cast<long>(vocab),
                                 alone[s].logits.begin() + static_cast<long>(token * vocab)))
              << "sequence " << s << " token " << token;
        }
        any = false;
        for (size_t s = 0; s < kSequences; ++s) {
          any = any || static_cast<size_t>(sequences[s].context) < ids[s].size();
        }
      }
    }
  }
}

TEST(Forward, ThreadCountAndBlockSizeDoNotChangeOneBit) {
  const LoadedModel model = load_model("qwen3moe-tiny-fp8block");
  std::mt19937 rng(73);
  const auto ids = random_ids(150, model.config.vocab_size, rng);
  ModelRunner first(model, ActivationDtype::kF32);
  TestSequence sequence = first.new_sequence();
  const ForwardOutput wanted = prefill(first, sequence, ids);
  const int threads_before = kernel_threads();
  for (const int32_t block_tokens : {1, 16, 100}) {
    for (const int threads : {1, 2, 5}) {
      set_kernel_threads(threads);
      ModelRunner runner(model, ActivationDtype::kF32, 300, block_tokens);
      TestSequence other = runner.new_sequence();
      EXPECT_TRUE(prefill(runner, other, ids).logits == wanted.logits)
          << threads << " threads, blocks of " << block_tokens;
    }
  }
  set_kernel_threads(threads_before);
}

// A rounding to p bits errs by at most 2^-(p+1) of a value (BF16: p = 8 with the hidden bit, so
// 2^-9; F16: p = 11, 2^-12). A layer makes about 10 roundings in a row on the residual path and
// its branches; taken as independent, 3 layers and the head give sqrt(31) of them, and the RMS
// error of the logits, relative to their RMS, stays below 3 times that. Routing may flip where two
// experts are nearly equal, so the F32 run's routes are replayed.
TEST(Forward, SixteenBitModesStayNearF32WithinTheirRounding) {
  for (const std::string& name : kModels) {
    const LoadedModel model = load_model(name);
    std::mt19937 rng(74);
    const auto ids = random_ids(120, model.config.vocab_size, rng);
    ModelRunner oracle(model, ActivationDtype::kF32);
    TestSequence oracle_sequence = oracle.new_sequence();
    const ForwardOutput wanted = prefill(oracle, oracle_sequence, ids);
    double error_of[2] = {};
    for (const ActivationDtype dtype : {ActivationDtype::kBf16, ActivationDtype::kF16}) {
      ModelRunner runner(model, dtype);
      TestSequence sequence = runner.new_sequence();
      const ForwardOutput got = runner.step({{&sequence, ids, wanted.routes}});
      double squares = 0.0, errors = 0.0;
      for (size_t i = 0; i < wanted.logits.size(); ++i) {
        squares += double{wanted.logits[i]} * wanted.logits[i];
        errors += std::pow(double{got.logits[i]} - wanted.logits[i], 2);
      }
      const bool bf16 = dtype == ActivationDtype::kBf16;
      const double rounding = bf16 ? std::ldexp(1.0, -9) : std::ldexp(1.0, -12);
      const double relative = std::sqrt(errors / squares);
      error_of[bf16 ? 0 : 1] = relative;
      EXPECT_LE(relative, 3.0 * std::sqrt(31.0) * rounding) << label(name, dtype);
      EXPECT_GT(relative, 0.0) << label(name, dtype) << " did not round at all";
    }
    // F16 has three bits more than BF16: at least 4 times nearer.
    EXPECT_GT(error_of[0], 4.0 * error_of[1]) << name;
  }
}

TEST(Forward, ReplayedRoutesAreUsedAndReproduceTheFreeRun) {
  const LoadedModel model = load_model("qwen3moe-tiny");
  std::mt19937 rng(75);
  const auto ids = random_ids(20, model.config.vocab_size, rng);
  ModelRunner runner(model, ActivationDtype::kF32);
  TestSequence free_sequence = runner.new_sequence(), same = free_sequence, other = free_sequence;
  const ForwardOutput free_run = runner.step({{&free_sequence, ids}});
  const ForwardOutput replay = runner.step({{&same, ids, free_run.routes}});
  EXPECT_TRUE(replay.logits == free_run.logits);
  EXPECT_TRUE(replay.routes == free_run.routes);
  std::vector<uint16_t> shifted = free_run.routes;
  for (uint16_t& expert : shifted) expert = static_cast<uint16_t>((expert + 1) % 8);
  const ForwardOutput changed = runner.step({{&other, ids, shifted}});
  EXPECT_TRUE(changed.routes == shifted);
  EXPECT_FALSE(changed.logits == free_run.logits);
}

TEST(Forward, RoutesAndRouterLogitsAreGivenOnlyWhenAsked) {
  const LoadedModel model = load_model("qwen3moe-tiny");
  KvCache kv(model.config, 1, 16, ActivationDtype::kF32);
  const std::vector<int32_t> ids{1}, zero{0}, cu_seqlens{0, 1}, context{1};
  const ForwardBatch batch{.token_ids = ids,
                           .positions = zero,
                           .slot_mapping = zero,
                           .cu_seqlens_q = cu_seqlens,
                           .context_lens = context,
                           .block_table = zero,
                           .blocks_per_sequence = 1,
                           .logits_rows = {},
                           .given_routes = {}};
  ForwardOutput out;
  forward(batch, model.config, model.weights, ActivationDtype::kF32, kv, out);
  EXPECT_TRUE(out.routes.empty());
  EXPECT_TRUE(out.router_logits.empty());
  EXPECT_TRUE(out.logits.empty());
}

TEST(KvCache, ACopiedBlockServesAsItsSource) {
  const LoadedModel model = load_model("qwen3moe-tiny");
  KvCache kv(model.config, 4, 4, ActivationDtype::kF32);
  EXPECT_EQ(kv.bytes(), size_t{2} * 3 * 4 * 4 * 2 * 32 * 4);
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (int32_t i = 0; i < 4 * 4 * 64; ++i) {
      kv.k(layer)[i] = static_cast<float>(layer * 10000 + i);
      kv.v(layer)[i] = static_cast<float>(-layer * 10000 - i);
    }
  }
  kv.copy_block(1, 3);
  const int32_t block = 4 * 64;
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (float* values : {kv.k(layer), kv.v(layer)}) {
      EXPECT_TRUE(std::equal(values + block, values + 2 * block, values + 3 * block));
      EXPECT_NE(values[2 * block], values[block]);
    }
  }
  EXPECT_THROW(kv.copy_block(0, 4), std::invalid_argument);
  EXPECT_THROW(kv.copy_block(-1, 0), std::invalid_argument);
  EXPECT_THROW(KvCache(model.config, 0, 4, ActivationDtype::kF32), std::invalid_argument);
  EXPECT_THROW(KvCache(model.config, 1 << 20, 1 << 20, ActivationDtype::kF32),
               std::invalid_argument);
}

// A good batch of two sequences (a decode token at position 5, a prefill of 3), to be spoilt.
struct Batch {
  std::vector<int32_t> ids{1, 2, 3, 4}, positions{5, 0, 1, 2}, slots{9, 0, 1, 2},
      cu_seqlens{0, 1, 4}, contexts{6, 3}, table{3, 2, 0, -1}, rows{0, 3};
  int32_t width = 2;
  std::vector<uint16_t> routes;
  ActivationDtype activations = ActivationDtype::kF32;
};

TEST(Forward, RefusesBrokenBatchesWithTheValues) {
  const LoadedModel model = load_model("qwen3moe-tiny");
  const auto message_of = [&](const auto& spoil) -> std::string {
    Batch b;
    spoil(b);
    KvCache kv(model.config, 4, 4, ActivationDtype::kF32);
    ForwardOutput out;
    try {
      forward({.token_ids = b.ids,
               .positions = b.positions,
               .slot_mapping = b.slots,
               .cu_seqlens_q = b.cu_seqlens,
               .context_lens = b.contexts,
               .block_table = b.table,
               .blocks_per_sequence = b.width,
               .logits_rows = b.rows,
               .given_routes = b.routes},
              model.config, model.weights, b.activations, kv, out);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message_of([](Batch&) {}), "");
  EXPECT_THAT(message_of([](Batch& b) { b.ids[1] = 512; }), HasSubstr("token id at 1 is 512"));
  EXPECT_THAT(message_of([](Batch& b) { b.positions.pop_back(); }), HasSubstr("positions has 3"));
  EXPECT_THAT(message_of([](Batch& b) { b.positions[0] = 4; }),
              HasSubstr("position of token 0 is 4, wanted 5"));
  EXPECT_THAT(message_of([](Batch& b) { b.slots[0] = 8; }),
              HasSubstr("slot of token 0 is 8, wanted 9"));
  EXPECT_THAT(message_of([](Batch& b) { b.slots.clear(); }), HasSubstr("slot_mapping has 0"));
  EXPECT_THAT(message_of([](Batch& b) { b.table[1] = 4; }), HasSubstr("block of token 0 is 4"));
  EXPECT_THAT(message_of([](Batch& b) { b.table[0] = 7; }), HasSubstr("block 0 of sequence 0"));
  EXPECT_THAT(message_of([](Batch& b) { b.table.pop_back(); }), HasSubstr("block_table has 3"));
  EXPECT_THAT(message_of([](Batch& b) { b.contexts[0] = 9; }),
              HasSubstr("context_lens of sequence 0 is 9"));
  EXPECT_THAT(message_of([](Batch& b) { b.contexts[1] = 2; }),
              HasSubstr("new tokens of sequence 1 is 3"));
  EXPECT_THAT(message_of([](Batch& b) { b.cu_seqlens[1] = 5; }), HasSubstr("cu_seqlens_q 1 is 5"));
  EXPECT_THAT(message_of([](Batch& b) { b.cu_seqlens[2] = 3; }), HasSubstr("last cu_seqlens_q"));
  EXPECT_THAT(message_of([](Batch& b) { b.cu_seqlens.clear(); }), HasSubstr("cu_seqlens_q has 0"));
  EXPECT_THAT(message_of([](Batch& b) { b.rows[1] = 4; }), HasSubstr("logits row is 4"));
  EXPECT_THAT(message_of([](Batch& b) { b.routes.resize(7); }), HasSubstr("given_routes has 7"));
  EXPECT_THAT(message_of([](Batch& b) { b.routes.resize(24, 8); }), HasSubstr("given expert"));
  EXPECT_THAT(message_of([](Batch& b) { b.activations = ActivationDtype::kBf16; }),
              HasSubstr("activations are bf16, wanted f32"));
}

TEST(Forward, AnEmptyBatchIsFine) {
  const LoadedModel model = load_model("qwen3moe-tiny");
  ModelRunner runner(model, ActivationDtype::kF32);
  EXPECT_TRUE(runner.step({}).logits.empty());
}

}  // namespace
}  // namespace warproll::testing
