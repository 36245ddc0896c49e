// The ops of the decode step on the GPU against their CPU twins in the BF16 rounding mode.
#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>

#include "gpu_support.h"
#include "kernels/embedding.h"
#include "kernels/residual_add.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/step/add_rmsnorm.h"
#include "kernels/step/embed.h"
#include "kernels/step/qkv_finish.h"

namespace warproll {
namespace {

using namespace testing;  // gpu_support.h

constexpr int32_t kTokenCounts[] = {0, 1, 2, 33, 200};
constexpr int32_t kHiddenSizes[] = {32, 64, 2048, 2880};
constexpr Dtype kWeightDtypes[] = {Dtype::kBf16, Dtype::kF16, Dtype::kF32};

using Bits = std::vector<uint16_t>;

// Device memory with a canary of 128 bytes on either side. Filled with 0xff (NaN) or with values.
template <typename T>
class Guarded {
 public:
  explicit Guarded(size_t size) : Guarded(filled(size)) {}
  explicit Guarded(const std::vector<T>& values) : size_(values.size()) {
    std::vector<T> all(size_ + 2 * kCanaries);
    std::memset(all.data(), kCanary, all.size() * sizeof(T));
    std::copy(values.begin(), values.end(), all.begin() + kCanaries);
    buffer_ = DeviceBuffer<T>(all);
  }
  [[nodiscard]] T* data() const { return buffer_.data() + kCanaries; }
  // Waits for the device.
  [[nodiscard]] std::vector<T> read() const {
    WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
    const std::vector<T> all = buffer_.to_host();
    const auto* bytes = reinterpret_cast<const unsigned char*>(all.data());
    for (size_t i = 0; i < kCanaries * sizeof(T); ++i) {
      EXPECT_EQ(bytes[i], kCanary) << "written before the buffer";
      EXPECT_EQ(bytes[all.size() * sizeof(T) - 1 - i], kCanary) << "written behind the buffer";
    }
    return {all.begin() + kCanaries, all.end() - kCanaries};
  }

 private:
  static constexpr size_t kCanaries = 128 / sizeof(T);
  static constexpr unsigned char kCanary = 0x5a;
  static std::vector<T> filled(size_t size) {
    std::vector<T> values(size);
    if (size > 0) std::memset(values.data(), 0xff, size * sizeof(T));
    return values;
  }
  size_t size_;
  DeviceBuffer<T> buffer_;
};

size_t count_of(int64_t a, int64_t b, int64_t c = 1) { return static_cast<size_t>(a * b * c); }

Bits random_bf16(size_t count, std::mt19937& rng, float sigma = 1.0f) {
  std::normal_distribution<float> normal(0.0f, sigma);
  Bits out(count);
  for (uint16_t& v : out) v = f32_to_bf16(normal(rng));
  return out;
}

std::vector<float> to_floats(const Bits& bits) {
  std::vector<float> out(bits.size());
  std::transform(bits.begin(), bits.end(), out.begin(), bf16_to_f32);
  return out;
}
// Of values that are BF16 already.
Bits to_bits(const std::vector<float>& values) {
  Bits out(values.size());
  std::transform(values.begin(), values.end(), out.begin(), f32_to_bf16);
  return out;
}

// A weight of `dtype` on the host, N(mean, sigma).
std::vector<std::byte> random_weights(size_t count, Dtype dtype, std::mt19937& rng, float mean,
                                      float sigma) {
  std::normal_distribution<float> normal(mean, sigma);
  std::vector<std::byte> out(count * dtype_bytes(dtype));
  for (size_t i = 0; i < count; ++i) {
    const float v = normal(rng);
    const uint16_t half = dtype == Dtype::kF16 ? f32_to_f16(v) : f32_to_bf16(v);
    if (dtype == Dtype::kF32) {
      std::memcpy(out.data() + i * 4, &v, 4);
    } else {
      std::memcpy(out.data() + i * 2, &half, 2);
    }
  }
  return out;
}

// Rows of `size` of a packed matrix, in the order of `picks`.
template <typename T>
std::vector<T> rows_of(const std::vector<T>& all, int64_t size, const std::vector<int32_t>& picks) {
  std::vector<T> out;
  for (const int32_t t : picks) {
    out.insert(out.end(), all.begin() + t * size, all.begin() + (t + 1) * size);
  }
  return out;
}

// BF16 values in order: neighbours differ by one.
int32_t ordinal(uint16_t bits) {
  const int32_t magnitude = bits & 0x7fff;
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// How two BF16 tensors agree, over all shapes of a test. F32 sums in two orders differ by some
// 1e-7, a BF16 ulp is 4e-3: one value in thousands may round to the neighbour, none further.
struct Agreement {
  int64_t total = 0, equal = 0;
  int32_t worst_ulps = 0;

  void add(const Bits& got, const Bits& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_LE(got[i] & 0x7fff, 0x7f80) << "NaN at " << i;
      const int32_t ulps = std::abs(ordinal(got[i]) - ordinal(want[i]));
      worst_ulps = std::max(worst_ulps, ulps);
      total += 1;
      equal += ulps == 0 ? 1 : 0;
    }
  }
  void expect_close() const {
    EXPECT_LE(worst_ulps, 1);
    EXPECT_GE(static_cast<double>(equal), 0.995 * static_cast<double>(total));
  }
};

// Records `body(stream)` as a graph and replays it.
class Replay {
 public:
  explicit Replay(const std::function<void(cudaStream_t)>& body) {
    WARPROLL_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    WARPROLL_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    body(stream_);
    cudaGraph_t graph = nullptr;
    WARPROLL_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    WARPROLL_CUDA_CHECK(cudaGraphInstantiate(&exec_, graph, 0));
    cudaGraphDestroy(graph);
  }
  ~Replay() {
    cudaGraphExecDestroy(exec_);
    cudaStreamDestroy(stream_);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  void launch() const { WARPROLL_CUDA_CHECK(cudaGraphLaunch(exec_, stream_)); }
  void wait() const { WARPROLL_CUDA_CHECK(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

// ---- embed ----

WeightView table(WeightFormat format, const std::byte* data, int32_t vocab, int32_t hidden) {
  WeightView view;
  view.format = format;
  view.data = data;
  view.rows = vocab;
  view.cols = hidden;
  return view;
}

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

// ---- add_rmsnorm ----

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

// ---- qkv_finish ----

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

// ---- together ----

// A chain in which every kernel may start before the one it reads from has ended.
TEST(StepGpu, AReplayedChainHasTheBitsOfOpsRunOneByOne) {
  SKIP_WITHOUT_GPU();
  std::mt19937 rng(86);
  constexpr int32_t kTokens = 64, kHidden = 2048, kVocab = 300, kHeads = 12, kKvHeads = 2;
  static_assert((kHeads + 2 * kKvHeads) * 128 == kHidden);  // normed is taken for qkv
  const size_t size = count_of(kTokens, kHidden);
  const auto weight = random_weights(count_of(kVocab, kHidden), Dtype::kBf16, rng, 0.0f, 1.0f);
  std::vector<float> cos(count_of(kMaxPositions, 64)), sin(cos.size());
  fill_rope_tables(kMaxPositions, 128, kTheta, cos.data(), sin.data());
  const Guarded<std::byte> table_data(weight),
      norm(random_weights(kHidden, Dtype::kBf16, rng, 1.0f, 0.3f));
  const Guarded<float> device_cos(cos), device_sin(sin);
  std::vector<int32_t> positions, slots;
  for (int32_t t = 0; t < kTokens; ++t) {
    positions.push_back(static_cast<int32_t>(rng() % kMaxPositions));
    slots.push_back(kTokens - 1 - t);
  }
  const Guarded<int32_t> ids(static_cast<size_t>(kTokens)), device_positions(positions),
      device_slots(slots);
  const Guarded<uint16_t> hidden(size), normed(size), tile(size), q(count_of(kTokens, kHeads, 128)),
      k_cache(count_of(kTokens, kKvHeads, 128)), v_cache(count_of(kTokens, kKvHeads, 128));
  const Guarded<float> scales(static_cast<size_t>(kTokens));
  const auto step = [&](cudaStream_t stream, bool wait) {
    const auto done = [&] {
      if (wait) WARPROLL_CUDA_CHECK(cudaStreamSynchronize(stream));
    };
    embed({.token_ids = ids.data(),
           .weight = table(WeightFormat::kBf16, table_data.data(), kVocab, kHidden),
           .hidden = hidden.data(),
           .num_tokens = kTokens},
          stream);
    done();
    for (int layer = 0; layer < 6; ++layer) {
      AddRmsNormParams p;
      p.hidden = hidden.data();
      p.addend = layer == 0 ? nullptr : normed.data();
      p.weight = norm.data();
      p.normed = normed.data();
      p.normed_tile = {tile.data(), scales.data()};
      p.num_tokens = kTokens;
      p.hidden_size = kHidden;
      add_rmsnorm(p, stream);
      done();
      QkvFinishParams f;
      f.qkv = normed.data();
      f.q_norm = f.k_norm = norm.data();
      f.cos = device_cos.data();
      f.sin = device_sin.data();
      f.positions = device_positions.data();
      f.slot_mapping = device_slots.data();
      f.q = q.data();
      f.k_cache = k_cache.data();
      f.v_cache = v_cache.data();
      f.num_slots = kTokens;
      f.max_positions = kMaxPositions;
      f.num_tokens = kTokens;
      f.num_heads = kHeads;
      f.num_kv_heads = kKvHeads;
      f.head_dim = 128;
      f.indices_are_older = true;
      qkv_finish(f, stream);
      done();
    }
  };
  const auto set_ids = [&](int32_t first) {
    std::vector<int32_t> values;
    for (int32_t t = 0; t < kTokens; ++t) values.push_back((first + 7 * t) % kVocab);
    WARPROLL_CUDA_CHECK(cudaMemcpy(ids.data(), values.data(), values.size() * sizeof(int32_t),
                                   cudaMemcpyHostToDevice));
  };
  const Replay replay([&](cudaStream_t stream) { step(stream, false); });
  for (int32_t run = 0; run < 20; ++run) {
    set_ids(run);
    step(nullptr, true);
    const Bits want_hidden = hidden.read(), want_normed = normed.read(), want_tile = tile.read(),
               want_q = q.read(), want_k = k_cache.read(), want_v = v_cache.read();
    for (int i = 0; i < 3; ++i) replay.launch();  // back to back: the last one counts
    replay.wait();
    ASSERT_EQ(hidden.read(), want_hidden) << "replay " << run;
    ASSERT_EQ(normed.read(), want_normed);
    ASSERT_EQ(tile.read(), want_tile);
    ASSERT_EQ(q.read(), want_q);
    ASSERT_EQ(k_cache.read(), want_k);
    ASSERT_EQ(v_cache.read(), want_v);
  }
}

}  // namespace
}  // namespace warproll
