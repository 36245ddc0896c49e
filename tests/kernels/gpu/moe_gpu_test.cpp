// The MoE layer on the GPU against F64, and what the paths promise of their bits.
#include <algorithm>
#include <cmath>
#include <future>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpu_support.h"

namespace warproll {
namespace {

using namespace testing;  // gpu_support.h

constexpr ExpertShape kReference = {};  // Qwen3-30B-A3B
constexpr WeightFormat kFormats[] = {WeightFormat::kBf16, WeightFormat::kMxfp8,
                                     WeightFormat::kFp8Block};
constexpr const char* kFormatNames[] = {"f32", "f16", "bf16", "mxfp8", "fp8_block"};

std::string name_of(WeightFormat format) { return kFormatNames[static_cast<int>(format)]; }

void expect_right(const Distance& d, const std::string& what) {
  EXPECT_LE(d.worst, 1.0) << what << ": worst element in units of its bound";
  EXPECT_GT(d.cosine, 0.999996) << what;
}

TEST(MoeGpu, MeetsTheBoundForEveryBatchDtypeAndRouting) {
  SKIP_WITHOUT_GPU();
  for (const WeightFormat format : kFormats) {
    const Layer layer(kReference, format, 1);
    for (const Routing routing : {Routing::kUniform, Routing::kSkewed, Routing::kSame}) {
      for (const int32_t batch : {1, 2, 3, 4, 8, 16, 17, 32, 64, 128}) {
        const Tokens tokens(kReference, batch, routing, 100 + static_cast<uint64_t>(batch));
        const std::string what = name_of(format) + ", routing " +
                                 std::to_string(static_cast<int>(routing)) + ", B " +
                                 std::to_string(batch);
        const auto oracle = run_oracle(layer, tokens);
        expect_right(distance_to(run_warp_decode(layer, tokens), oracle), "warp decode, " + what);
        if (format != WeightFormat::kFp8Block) {
          expect_right(distance_to(run_literal(layer, tokens), oracle), "literal, " + what);
        }
      }
    }
  }
}

std::string name_of(const ExpertShape& shape) {
  return "H" + std::to_string(shape.hidden_size) + "I" + std::to_string(shape.intermediate_size) +
         "E" + std::to_string(shape.num_experts) + "K" + std::to_string(shape.top_k);
}
std::string test_name(const ::testing::TestParamInfo<ExpertShape>& info) {
  return name_of(info.param);
}

// H, I, E, K: not multiples of 128, few and many experts, every K of the field.
class MoeOddShapesGpu : public ::testing::TestWithParam<ExpertShape> {};
INSTANTIATE_TEST_SUITE_P(
    , MoeOddShapesGpu,
    ::testing::Values(ExpertShape{32, 32, 5, 1}, ExpertShape{96, 160, 5, 2},
                      ExpertShape{288, 96, 60, 6}, ExpertShape{2880, 1440, 20, 4},
                      ExpertShape{2048, 768, 60, 6}, ExpertShape{2048, 96, 512, 10},
                      ExpertShape{256, 768, 512, 16}, ExpertShape{4096, 1536, 16, 8}),
    test_name);

TEST_P(MoeOddShapesGpu, AreRight) {
  SKIP_WITHOUT_GPU();
  const ExpertShape shape = GetParam();
  for (const WeightFormat format : kFormats) {
    const Layer layer(shape, format, 3);
    for (const int32_t batch : {1, 5, 40}) {
      const Tokens tokens(shape, batch, Routing::kUniform, 7);
      const std::string what = name_of(format) + ", B " + std::to_string(batch);
      const auto oracle = run_oracle(layer, tokens);
      expect_right(distance_to(run_warp_decode(layer, tokens), oracle), "warp decode, " + what);
      if (format != WeightFormat::kFp8Block) {
        expect_right(distance_to(run_literal(layer, tokens), oracle), "literal, " + what);
      }
    }
  }
}

class ExpertCentricGpu : public ::testing::TestWithParam<ExpertShape> {};
INSTANTIATE_TEST_SUITE_P(, ExpertCentricGpu,
                         ::testing::Values(kReference, ExpertShape{96, 160, 5, 2},
                                           ExpertShape{2880, 1440, 20, 4}),
                         test_name);

TEST_P(ExpertCentricGpu, MeetsTheBoundToo) {
  SKIP_WITHOUT_GPU();
  const ExpertShape shape = GetParam();
  for (const WeightFormat format : kFormats) {
    const Layer layer(shape, format, 8);
    for (const Routing routing : {Routing::kUniform, Routing::kSkewed}) {
      for (const int32_t tokens : {1, 40, 513}) {
        const Tokens t(shape, tokens, routing, 9);
        expect_right(distance_to(run_expert_centric(layer, t), run_oracle(layer, t)),
                     name_of(format) + ", T " + std::to_string(tokens));
      }
    }
  }
}

TEST(MoeGpu, IsNearerThanPathsThatRoundTheIntermediate) {
  SKIP_WITHOUT_GPU();
  for (const WeightFormat format : kFormats) {
    const Layer layer(kReference, format, 2);
    const Tokens tokens(kReference, 16, Routing::kUniform, 5);
    const auto oracle = run_oracle(layer, tokens);
    const double ours = relative_error(run_warp_decode_f32(layer, tokens), oracle);
    const double bf16 =
        relative_error(run_oracle(layer, tokens, OracleRounding::kBf16Hidden), oracle);
    const double mxfp8 =
        relative_error(run_oracle(layer, tokens, OracleRounding::kMxfp8Activations), oracle);
    EXPECT_LT(ours * 1.3, bf16) << name_of(format);
    EXPECT_LT(ours * 20, mxfp8) << name_of(format);
    RecordProperty(name_of(format) + "_relative_error", std::to_string(ours));
    std::printf("%s: relative RMS error %.3g; BF16 intermediate %.3g, MXFP8 activations %.3g\n",
                name_of(format).c_str(), ours, bf16, mxfp8);
  }
}

TEST(MoeGpu, ATokensBitsDoNotDependOnItsBatch) {
  SKIP_WITHOUT_GPU();
  for (const auto& [format, routing] : {std::pair{WeightFormat::kBf16, Routing::kSkewed},
                                        {WeightFormat::kBf16, Routing::kSame},
                                        {WeightFormat::kMxfp8, Routing::kSkewed},
                                        {WeightFormat::kFp8Block, Routing::kSkewed}}) {
    const Layer layer(kReference, format, 4);
    const int32_t all = 200;
    const Tokens tokens(kReference, all, routing, 11);
    const auto whole = run_warp_decode(layer, tokens);
    std::mt19937 rng(12);
    for (const int32_t size : {1, 2, 3, 7, 16, 33, 64, 199}) {
      std::vector<int32_t> picks(static_cast<size_t>(all));
      std::iota(picks.begin(), picks.end(), 0);
      std::shuffle(picks.begin(), picks.end(), rng);
      picks.resize(static_cast<size_t>(size));
      const auto part = run_warp_decode(layer, Tokens(kReference, tokens, picks));
      for (int32_t i = 0; i < size; ++i) {
        const auto row = [&](const std::vector<uint16_t>& y, int32_t t) {
          const auto begin = y.begin() + int64_t{t} * kReference.hidden_size;
          return std::vector<uint16_t>(begin, begin + kReference.hidden_size);
        };
        ASSERT_EQ(row(part, i), row(whole, picks[static_cast<size_t>(i)]))
            << name_of(format) << ": token " << picks[static_cast<size_t>(i)] << " in a batch of "
            << size;
      }
    }
  }
}

TEST(MoeGpu, AHundredRunsHaveTheSameBits) {
  SKIP_WITHOUT_GPU();
  for (const int32_t batch : {1, 2, 8, 64}) {
    const Layer layer(kReference, WeightFormat::kMxfp8, 5);
    const Tokens tokens(kReference, batch, Routing::kUniform, 13);
    const auto first = run_warp_decode(layer, tokens);
    const auto literal = run_literal(layer, tokens);
    for (int run = 1; run < 100; ++run) {
      ASSERT_EQ(run_warp_decode(layer, tokens), first) << "run " << run << ", B " << batch;
      ASSERT_EQ(run_literal(layer, tokens), literal) << "run " << run << ", B " << batch;
    }
  }
}

// Many blocks of 32 pairs, and few tiles of each to a CTA: its warps load activations between any two
// records. One run in forty read the row scales of another record there.
TEST(MoeGpu, ManyRunsOfFullBlocksHaveTheSameBits) {
  SKIP_WITHOUT_GPU();
  for (const WeightFormat format : kFormats) {
    const Layer layer(kReference, format, 1);
    for (const int32_t batch : {128, 200}) {
      const Tokens tokens(kReference, batch, Routing::kSame, 18);
      const auto first = run_warp_decode(layer, tokens);
      for (int run = 1; run < 400; ++run) {
        ASSERT_EQ(run_warp_decode(layer, tokens), first)
            << name_of(format) << ", run " << run << ", B " << batch;
      }
    }
  }
}

TEST(MoeGpu, PartialsThatANormAddsHaveTheBitsOfCombine) {
  SKIP_WITHOUT_GPU();
  for (const auto& [format, shape] : {std::pair{WeightFormat::kBf16, kReference},
                                      {WeightFormat::kMxfp8, kReference},
                                      {WeightFormat::kFp8Block, kReference},
                                      {WeightFormat::kMxfp8, ExpertShape{64, 96, 1, 1}}}) {
    const Layer layer(shape, format, 21);
    for (const int32_t batch : {1, 2, 3, 8, 64}) {
      const Tokens tokens(shape, batch, Routing::kSkewed, 22);
      ASSERT_EQ(run_warp_decode_and_norm(layer, tokens, true),
                run_warp_decode_and_norm(layer, tokens, false))
          << name_of(format) << ", B " << batch;
    }
  }
}

TEST(MoeGpu, AnExpertOutsideTheModelAddsNothing) {
  SKIP_WITHOUT_GPU();
  const Layer layer(kReference, WeightFormat::kMxfp8, 6);
  for (const int32_t batch : {1, 2, 20}) {
    Tokens tokens(kReference, batch, Routing::kUniform, 14);
    std::vector<int32_t> bad = tokens.host_ids;
    std::vector<float> weights = tokens.weights.to_host();
    for (size_t i = 0; i < bad.size(); i += 3) {
      bad[i] = i % 2 == 0 ? -1 : i % 5 == 0 ? 2'000'000'000 : 128;
      weights[i] = 0.0f;  // what the oracle sees, with the good id
    }
    tokens.weights.copy_from(weights);
    const auto oracle = run_oracle(layer, tokens);
    tokens.ids.copy_from(bad);
    expect_right(distance_to(run_warp_decode(layer, tokens), oracle), "warp decode");
    expect_right(distance_to(run_literal(layer, tokens), oracle), "literal");
    tokens.ids.copy_from(std::vector<int32_t>(bad.size(), -1));
    for (const uint16_t y : run_warp_decode(layer, tokens)) ASSERT_EQ(y, 0);
  }
}

TEST(MoeGpu, LargeActivationsDoNotOverflow) {
  SKIP_WITHOUT_GPU();
  const Layer layer(kReference, WeightFormat::kBf16, 7);
  Tokens tokens(kReference, 4, Routing::kUniform, 15);
  fill_normal(tokens.x.data(), static_cast<int64_t>(tokens.x.size()), 16, 3e4f, nullptr);
  std::vector<uint16_t> x = tokens.x.to_host();
  for (size_t i = 0; i < 2048; ++i) x[i] = f32_to_bf16(bf16_to_f32(x[i]) * 0.001f);  // token 0: 30
  tokens.x.copy_from(x);
  const Tokens one(kReference, tokens, {0});
  expect_right(distance_to(run_warp_decode(layer, one), run_oracle(layer, one)), "x of 30");
  // h of x = 3e4 leaves F16's range, scaled too: clamped, never inf or NaN.
  for (const uint16_t y : run_warp_decode(layer, tokens))
    ASSERT_TRUE(std::isfinite(bf16_to_f32(y)));
}

// The golden gate's engine and the one that serves do. A kernel's shared memory is of its launch.
TEST(MoeGpu, TwoThreadsLaunchTheSameKernelsForBatchesOfTheirOwn) {
  SKIP_WITHOUT_GPU();
  const ExpertShape shape = {.hidden_size = 1024,  // rings of more than 48 KiB
                             .intermediate_size = 128,
                             .num_experts = 128,
                             .top_k = 2};
  const Layer layer(shape, WeightFormat::kMxfp8, 8);
  const auto run = [&](int32_t batch) {
    const Tokens tokens(shape, batch, Routing::kUniform, 17);
    const auto first = run_warp_decode(layer, tokens);
    for (int i = 0; i < 1000; ++i) {
      if (run_warp_decode(layer, tokens) != first) return i;
    }
    return -1;
  };
  auto many = std::async(std::launch::async, run, 256);
  EXPECT_EQ(run(8), -1);
  EXPECT_EQ(many.get(), -1);
}

TEST(MoeGpu, NoTokensIsANoOpAndBadShapesAreNamed) {
  SKIP_WITHOUT_GPU();
  WarpDecodeParams params;
  params.gate_up = {TileFormat::kF16, nullptr, 4, 4, 64};
  params.down = {TileFormat::kF16, nullptr, 4, 4, 32};
  params.top_k = 2;
  warp_decode(params, nullptr);
  const auto message = [&]() -> std::string {
    try {
      warp_decode(params, nullptr);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  params.num_tokens = 4096;
  EXPECT_EQ(message(), "warp decode: T 4096, K 2; wanted T 0 .. 1024, K 1 .. 16");
  params.num_tokens = 1;
  params.down.cols = 64;
  EXPECT_EQ(
      message(),
      "warp decode: gate_up E 4, 4 tiles over 64; down E 4, 4 tiles over 64; wanted I/8 tiles over "
      "H and H/16 tiles over I, H and I multiples of 32, E 1 .. 512");
}

}  // namespace
}  // namespace warproll
