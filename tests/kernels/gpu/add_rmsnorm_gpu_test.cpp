// add_rmsnorm on the GPU against its CPU twins in the BF16 rounding mode.
#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>

#include "kernels/residual_add.h"
#include "kernels/rmsnorm.h"
#include "kernels/step/add_rmsnorm.h"
#include "step_support.h"

namespace warproll {
namespace {

using namespace testing;  // gpu_support.h, step_support.h

constexpr float kEps = 1e-2f;  // large: a norm that forgets it is seen

struct NormInputs {
  int32_t tokens, hidden_size;
  Bits hidden;
  Bits addend;                  // empty: none
  std::vector<float> partials;  // empty: none. [T * K, H]
  std::vector<float> pair_weights;
  int32_t top_k = 0;
  std::vector<std::byte> weight;
  Dtype dtype;
};
struct NormOutputs {
  Bits hidden, normed, tile;
  std::vector<float> scales;
};

NormInputs norm_inputs(int32_t tokens, int32_t hidden_size, Dtype dtype, std::mt19937& rng) {
  NormInputs in;
  in.tokens = tokens;
  in.hidden_size = hidden_size;
  in.hidden = random_bf16(count_of(tokens, hidden_size), rng, 3.0f);
  in.weight = random_weights(static_cast<size_t>(hidden_size), dtype, rng, 1.0f, 0.5f);
  in.dtype = dtype;
  return in;
}

void add_partials(NormInputs& in, int32_t top_k, std::mt19937& rng) {
  std::normal_distribution<float> normal(0.0f, 1.0f / 64);
  std::uniform_real_distribution<float> uniform(0.05f, 0.25f);
  in.top_k = top_k;
  in.partials.resize(count_of(in.tokens, top_k, in.hidden_size));
  in.pair_weights.resize(count_of(in.tokens, top_k));
  for (float& v : in.partials) v = normal(rng);
  for (float& w : in.pair_weights) w = uniform(rng);
  for (size_t pair = 0; pair < in.pair_weights.size(); pair += 5) {
    // An expert outside the model: no partial was written.
    in.pair_weights[pair] = 0.0f;
    const auto row = in.partials.begin() + static_cast<int64_t>(pair) * in.hidden_size;
    std::fill_n(row, in.hidden_size, std::bit_cast<float>(0xffffffffu));
  }
}

enum class Written { kBoth, kBf16, kTile };

NormOutputs run_norm(const NormInputs& in, Written written = Written::kBoth) {
  const size_t size = count_of(in.tokens, in.hidden_size);
  const Guarded<uint16_t> hidden(in.hidden), addend(in.addend), normed(size), tile(size);
  const Guarded<float> partials(in.partials), pair_weights(in.pair_weights),
      scales(static_cast<size_t>(in.tokens));
  const Guarded<std::byte> weight(in.weight);
  const Guarded<ExpertListCounts> counts(std::vector<ExpertListCounts>{{1, 2, 3, 4, 5, 6, 7}});
  AddRmsNormParams p;
  p.hidden = hidden.data();
  p.addend = in.addend.empty() ? nullptr : addend.data();
  if (in.top_k > 0) p.moe = {partials.data(), pair_weights.data(), counts.data(), in.top_k};
  p.weight = weight.data();
  p.weight_dtype = in.dtype;
  p.eps = kEps;
  if (written != Written::kTile) p.normed = normed.data();
  if (written != Written::kBf16) p.normed_tile = {tile.data(), scales.data()};
  p.num_tokens = in.tokens;
  p.hidden_size = in.hidden_size;
  add_rmsnorm(p, nullptr);
  const ExpertListCounts after = counts.read()[0];
  EXPECT_EQ(after.next_down, in.top_k > 0 && in.tokens > 0 ? 0 : 7);
  EXPECT_EQ(after.next_gate_up, 6);
  EXPECT_EQ(after.num_invalid, 5);
  static_cast<void>(partials.read());
  return {hidden.read(), normed.read(), tile.read(), scales.read()};
}

// combine.cu's sum, on the host.
Bits combined(const NormInputs& in) {
  Bits out(count_of(in.tokens, in.hidden_size));
  for (int64_t t = 0; t < in.tokens; ++t) {
    for (int64_t c = 0; c < in.hidden_size; ++c) {
      float sum = 0.0f;
      for (int64_t pair = t * in.top_k; pair < (t + 1) * in.top_k; ++pair) {
        const float w = in.pair_weights[static_cast<size_t>(pair)];
        if (w == 0.0f) continue;
        sum = std::fma(w, in.partials[static_cast<size_t>(pair * in.hidden_size + c)], sum);
      }
      out[static_cast<size_t>(t * in.hidden_size + c)] = f32_to_bf16(sum * 64.0f);
    }
  }
  return out;
}

// hidden and normed of the twins.
NormOutputs norm_of_twins(const NormInputs& in) {
  std::vector<float> hidden = to_floats(in.hidden), normed(hidden.size());
  const std::vector<float> addend = to_floats(in.top_k > 0 ? combined(in) : in.addend);
  if (!addend.empty()) {
    residual_add_cpu({.x = hidden.data(),
                      .y = addend.data(),
                      .count = static_cast<int64_t>(hidden.size()),
                      .round_to = Dtype::kBf16});
  }
  rmsnorm_cpu({.x = hidden.data(),
               .weight = in.weight.data(),
               .weight_dtype = in.dtype,
               .y = normed.data(),
               .num_rows = in.tokens,
               .row_size = in.hidden_size,
               .eps = kEps,
               .round_to = Dtype::kBf16});
  return {to_bits(hidden), to_bits(normed), {}, {}};
}

// What convert_activations makes of `normed`.
void expect_tile(const NormInputs& in, const NormOutputs& got) {
  const Guarded<uint16_t> x(got.normed), tile(got.normed.size());
  const Guarded<float> scales(got.scales.size());
  convert_activations({x.data(), {tile.data(), scales.data()}, in.tokens, in.hidden_size}, nullptr);
  ASSERT_EQ(got.tile, tile.read());
  ASSERT_EQ(got.scales, scales.read());
}

TEST(AddRmsNormGpu, AgreesWithItsTwinsForEveryAddendDtypeAndShape) {
  SKIP_WITHOUT_GPU();
  std::mt19937 rng(73);
  Agreement normed;
  // 8192 and 16384: four and eight columns of four a thread.
  for (const int32_t hidden_size : {32, 64, 96, 2048, 2880, 8192, 16384}) {
    for (const int32_t tokens : kTokenCounts) {
      if (hidden_size > 4096 && tokens > 33) continue;
      for (const int32_t top_k : {-1, 0, 1, 6, 8, 15}) {  // -1: no addend, 0: a tensor
        const Dtype dtype = kWeightDtypes[static_cast<size_t>(top_k + 1) % 3];
        SCOPED_TRACE("H " + std::to_string(hidden_size) + ", T " + std::to_string(tokens) + ", K " +
                     std::to_string(top_k));
        NormInputs in = norm_inputs(tokens, hidden_size, dtype, rng);
        if (top_k == 0) in.addend = random_bf16(in.hidden.size(), rng);
        if (top_k > 0) add_partials(in, top_k, rng);
        const NormOutputs got = run_norm(in), want = norm_of_twins(in);
        ASSERT_EQ(got.hidden, want.hidden);
        normed.add(got.normed, want.normed);
        expect_tile(in, got);
        if (HasFatalFailure()) return;
      }
    }
  }
  for (const Dtype dtype : kWeightDtypes) {
    NormInputs in = norm_inputs(33, 2048, dtype, rng);
    in.addend = random_bf16(in.hidden.size(), rng);
    normed.add(run_norm(in).normed, norm_of_twins(in).normed);
    if (HasFatalFailure()) return;
  }
  normed.expect_close();
}

TEST(AddRmsNormGpu, EachOutputIsTheSameWithoutTheOther) {
  SKIP_WITHOUT_GPU();
  std::mt19937 rng(74);
  NormInputs in = norm_inputs(5, 2880, Dtype::kBf16, rng);
  in.addend = random_bf16(in.hidden.size(), rng);
  const NormOutputs both = run_norm(in), bf16 = run_norm(in, Written::kBf16),
                    tile = run_norm(in, Written::kTile);
  EXPECT_EQ(bf16.hidden, both.hidden);
  EXPECT_EQ(tile.hidden, both.hidden);
  EXPECT_EQ(bf16.normed, both.normed);
  EXPECT_EQ(tile.tile, both.tile);
  EXPECT_EQ(tile.scales, both.scales);
  EXPECT_EQ(bf16.tile, Bits(in.hidden.size(), 0xffff));
  EXPECT_EQ(tile.normed, Bits(in.hidden.size(), 0xffff));
}

TEST(AddRmsNormGpu, LargeRowsGetTheScaleThatConvertActivationsGivesThem) {
  SKIP_WITHOUT_GPU();
  std::mt19937 rng(75);
  NormInputs in = norm_inputs(9, 2048, Dtype::kF32, rng);
  in.weight = random_weights(2048, Dtype::kF32, rng, 3e6f, 1e6f);
  // A row of zeros, one that overflows to inf and one with a NaN among them.
  std::fill_n(in.hidden.begin(), 2048, uint16_t{0});
  in.hidden[2048 * 3 + 77] = 0x7f80;
  in.hidden[2048 * 5 + 1999] = 0x7fc0;
  const NormOutputs got = run_norm(in);
  expect_tile(in, got);
  EXPECT_EQ(got.scales[0], 1.0f);
  EXPECT_GT(got.scales[1], 1.0f);
}

TEST(AddRmsNormGpu, NormedMayTakeTheAddendsPlace) {
  SKIP_WITHOUT_GPU();
  std::mt19937 rng(76);
  NormInputs in = norm_inputs(33, 2880, Dtype::kBf16, rng);
  in.addend = random_bf16(in.hidden.size(), rng);
  const NormOutputs want = run_norm(in);
  const Guarded<uint16_t> hidden(in.hidden), addend(in.addend);
  const Guarded<std::byte> weight(in.weight);
  AddRmsNormParams p;
  p.hidden = hidden.data();
  p.addend = p.normed = addend.data();
  p.weight = weight.data();
  p.eps = kEps;
  p.num_tokens = in.tokens;
  p.hidden_size = in.hidden_size;
  add_rmsnorm(p, nullptr);
  EXPECT_EQ(addend.read(), want.normed);
  EXPECT_EQ(hidden.read(), want.hidden);
}

TEST(AddRmsNormGpu, ATokensBitsDoNotDependOnItsBatch) {
  SKIP_WITHOUT_GPU();
  std::mt19937 rng(77);
  for (const int32_t hidden_size : {64, 2048, 2880}) {
    NormInputs in = norm_inputs(130, hidden_size, Dtype::kBf16, rng);
    add_partials(in, 8, rng);
    const NormOutputs whole = run_norm(in), again = run_norm(in);
    ASSERT_EQ(whole.hidden, again.hidden);
    ASSERT_EQ(whole.normed, again.normed);
    for (const std::vector<int32_t>& picks :
         {std::vector<int32_t>{0}, {129}, {64, 3, 17}, {5, 5, 128}}) {
      NormInputs some = in;
      some.tokens = static_cast<int32_t>(picks.size());
      some.hidden = rows_of(in.hidden, hidden_size, picks);
      some.partials = rows_of(in.partials, int64_t{8} * hidden_size, picks);
      some.pair_weights = rows_of(in.pair_weights, 8, picks);
      const NormOutputs got = run_norm(some);
      ASSERT_EQ(got.hidden, rows_of(whole.hidden, hidden_size, picks));
      ASSERT_EQ(got.normed, rows_of(whole.normed, hidden_size, picks));
      ASSERT_EQ(got.tile, rows_of(whole.tile, hidden_size, picks));
      ASSERT_EQ(got.scales, rows_of(whole.scales, 1, picks));
    }
  }
}

TEST(AddRmsNormGpu, AddsWarpDecodesPartialsAsItsOwnCombineDoes) {
  SKIP_WITHOUT_GPU();
  const ExpertShape shape{256, 96, 16, 4};
  const Layer layer(shape, WeightFormat::kMxfp8, 78);
  const Tokens tokens(shape, 33, Routing::kUniform, 79);
  const size_t size = count_of(33, 256), pairs = count_of(33, 4);
  const Guarded<uint16_t> x_tile(size), h(count_of(2 * 33, 4, 96)), y(size);
  const Guarded<float> x_scales(size_t{33}), partials(count_of(33, 4, 256));
  const auto num_pairs = static_cast<int32_t>(pairs);
  const DeviceBuffer<std::byte> memory(expert_lists_bytes(num_pairs, 16));
  WARPROLL_CUDA_CHECK(cudaMemset(memory.data(), 0, memory.size()));
  const ExpertLists lists = expert_lists_at(memory.data(), num_pairs, 16);
  convert_activations({tokens.x.data(), {x_tile.data(), x_scales.data()}, 33, 256}, nullptr);
  build_expert_lists({tokens.ids.data(), tokens.weights.data(), lists, 33, 16, 4}, nullptr);
  warp_decode({.x = {x_tile.data(), x_scales.data()},
               .lists = lists,
               .gate_up = layer.experts.gate_up_tiles,
               .down = layer.experts.down_tiles,
               .h = h.data(),
               .partials = partials.data(),
               .y = y.data(),
               .num_tokens = 33,
               .top_k = 4},
              nullptr);
  std::mt19937 rng(80);
  NormInputs in = norm_inputs(33, 256, Dtype::kBf16, rng);
  in.addend = y.read();
  const NormOutputs of_y = run_norm(in);
  in.addend.clear();
  in.partials = partials.read();
  in.pair_weights.resize(pairs);
  WARPROLL_CUDA_CHECK(cudaMemcpy(in.pair_weights.data(), lists.pair_weights, pairs * sizeof(float),
                                 cudaMemcpyDeviceToHost));
  in.top_k = 4;
  const NormOutputs of_partials = run_norm(in);
  EXPECT_EQ(of_partials.hidden, of_y.hidden);
  EXPECT_EQ(of_partials.normed, of_y.normed);
}

TEST(AddRmsNormGpu, RefusesBadShapes) {
  const auto at = [](uintptr_t address) { return reinterpret_cast<void*>(address); };  // never read
  AddRmsNormParams good;
  good.hidden = static_cast<uint16_t*>(at(256));
  good.weight = static_cast<std::byte*>(at(256));
  good.normed = static_cast<uint16_t*>(at(256));
  good.num_tokens = 1;
  good.hidden_size = 64;
  const auto* floats = static_cast<float*>(at(256));
  const auto refused = [&](const auto& change) {
    AddRmsNormParams p = good;
    change(p);
    EXPECT_THROW(add_rmsnorm(p, nullptr), std::invalid_argument);
  };
  using P = AddRmsNormParams;
  refused([](P& p) { p.num_tokens = -1; });
  for (const int32_t hidden : {-32, 0, 48, kMaxAddRmsNormHidden + 32}) {
    refused([&](P& p) { p.hidden_size = hidden; });
  }
  refused([](P& p) { p.weight_dtype = Dtype::kF8E4M3; });
  refused([](P& p) { p.hidden = nullptr; });
  refused([](P& p) { p.weight = nullptr; });
  refused([](P& p) { p.normed = nullptr; });
  refused([](P& p) { p.hidden += 1; });
  refused([](P& p) { p.normed_tile.values = p.normed; });  // no scales
  refused([&](P& p) { p.moe = {floats, nullptr, nullptr, 8}; });
  refused([&](P& p) { p.moe = {floats, floats, nullptr, 0}; });
  refused([&](P& p) { p.moe = {floats, floats, nullptr, 17}; });
  refused([&](P& p) {
    p.moe = {floats, floats, nullptr, 8};
    p.addend = p.normed;
  });
}

}  // namespace
}  // namespace warproll
