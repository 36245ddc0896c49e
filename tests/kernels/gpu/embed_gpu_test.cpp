// embed on the GPU: the bits of its CPU twin.
#include <climits>
#include <stdexcept>
#include <string>

#include "kernels/embedding.h"
#include "kernels/step/embed.h"
#include "step_support.h"

namespace warproll {
namespace {

using namespace testing;  // gpu_support.h, step_support.h

WeightFormat format_of(Dtype dtype) {
  return dtype == Dtype::kF32   ? WeightFormat::kF32
         : dtype == Dtype::kF16 ? WeightFormat::kF16
                                : WeightFormat::kBf16;
}

TEST(EmbedGpu, GivesTheRowsOfEveryFormatBitForBit) {
  SKIP_WITHOUT_GPU();
  std::mt19937 rng(71);
  constexpr int32_t kVocab = 57;
  for (const Dtype dtype : kWeightDtypes) {
    for (const int32_t hidden : kHiddenSizes) {
      const auto weight = random_weights(count_of(kVocab, hidden), dtype, rng, 0.0f, 1.0f);
      const Guarded<std::byte> device_weight(weight);
      for (const int32_t tokens : kTokenCounts) {
        SCOPED_TRACE(std::string(to_string(dtype)) + ", H " + std::to_string(hidden) + ", T " +
                     std::to_string(tokens));
        std::vector<int32_t> ids(static_cast<size_t>(tokens));
        for (int32_t& id : ids) id = static_cast<int32_t>(rng() % kVocab);
        if (tokens > 1) ids[0] = 0, ids[1] = kVocab - 1;
        std::vector<float> want(count_of(tokens, hidden));
        embedding_cpu({.token_ids = ids.data(),
                       .weight = table(format_of(dtype), weight.data(), kVocab, hidden),
                       .y = want.data(),
                       .num_tokens = tokens,
                       .round_to = Dtype::kBf16});
        const Guarded<int32_t> device_ids(ids);
        const Guarded<uint16_t> out(want.size());
        embed({.token_ids = device_ids.data(),
               .weight = table(format_of(dtype), device_weight.data(), kVocab, hidden),
               .hidden = out.data(),
               .num_tokens = tokens},
              nullptr);
        ASSERT_EQ(out.read(), to_bits(want));
      }
    }
  }
}

TEST(EmbedGpu, IdsOutsideTheVocabularyGiveZerosAndAreCounted) {
  SKIP_WITHOUT_GPU();
  std::mt19937 rng(72);
  constexpr int32_t kVocab = 9, kHidden = 2880;
  for (const Dtype dtype : kWeightDtypes) {
    const auto weight = random_weights(count_of(kVocab, kHidden), dtype, rng, 0.0f, 1.0f);
    const Guarded<std::byte> device_weight(weight);
    const Guarded<int32_t> ids(
        std::vector<int32_t>{0, -1, 8, kVocab, INT_MAX, INT_MIN, 3, kVocab + 1});
    const Guarded<int32_t> invalid(std::vector<int32_t>{100});
    for (int32_t run = 1; run <= 2; ++run) {
      const Guarded<uint16_t> out(count_of(8, kHidden));
      embed({.token_ids = ids.data(),
             .weight = table(format_of(dtype), device_weight.data(), kVocab, kHidden),
             .hidden = out.data(),
             .num_invalid = run == 2 ? nullptr : invalid.data(),
             .num_tokens = 8},
            nullptr);
      const Bits rows = out.read();
      const Bits zeros(kHidden, 0);
      for (const int32_t t : {1, 3, 4, 5, 7}) ASSERT_EQ(rows_of(rows, kHidden, {t}), zeros) << t;
      for (const int32_t t : {0, 2, 6}) ASSERT_NE(rows_of(rows, kHidden, {t}), zeros) << t;
    }
    EXPECT_EQ(invalid.read()[0], 105);  // the second run had no counter
  }
}

TEST(EmbedGpu, RefusesBadShapes) {
  const auto* data = reinterpret_cast<const std::byte*>(uintptr_t{256});  // never read
  EmbedParams good;
  good.token_ids = reinterpret_cast<const int32_t*>(data);
  good.weight = table(WeightFormat::kBf16, data, 10, 64);
  good.hidden = reinterpret_cast<uint16_t*>(uintptr_t{256});
  good.num_tokens = 1;
  const auto refused = [&](const auto& change) {
    EmbedParams p = good;
    change(p);
    EXPECT_THROW(embed(p, nullptr), std::invalid_argument);
  };
  refused([](EmbedParams& p) { p.num_tokens = -1; });
  refused([](EmbedParams& p) { p.token_ids = nullptr; });
  refused([](EmbedParams& p) { p.hidden = nullptr; });
  refused([](EmbedParams& p) { p.hidden += 1; });
  refused([](EmbedParams& p) { p.weight.data += 2; });
  refused([](EmbedParams& p) { p.weight.cols = 60; });
  refused([](EmbedParams& p) { p.weight.rows = 0; });
  refused([](EmbedParams& p) { p.weight.num_matrices = 2; });
  refused([](EmbedParams& p) { p.weight.format = WeightFormat::kMxfp8; });
}

}  // namespace
}  // namespace warproll
