// CPU twins: time a call, multiply-adds or tokens a second. One thread unless OMP_NUM_THREADS says
// otherwise. Weights are zeros of the right format: the ops do not look at values.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/linear.h"
#include "kernels/moe.h"
#include "kernels/sampling.h"

namespace warproll {
namespace {

constexpr int32_t kHidden = 2048;  // Qwen3-30B-A3B
constexpr int32_t kIntermediate = 768;
constexpr int32_t kTopK = 8;

std::vector<float> random_floats(size_t count) {
  std::mt19937 random(20261129);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

struct Weights {
  Weights(WeightFormat format, int32_t matrices, int32_t rows, int32_t cols) {
    const bool quantised = format == WeightFormat::kMxfp8;
    const size_t elements = static_cast<size_t>(matrices) * rows * cols;
    data.resize(elements * (quantised ? 1 : 2));
    scales.resize(quantised ? elements / 32 : 0, std::byte{127});
    view.format = format;
    view.data = data.data();
    view.scales = quantised ? scales.data() : nullptr;
    view.num_matrices = matrices;
    view.rows = rows;
    view.cols = cols;
    view.matrix_stride_bytes = data.size() / static_cast<size_t>(matrices);
    view.scale_stride_bytes = scales.size() / static_cast<size_t>(matrices);
  }
  std::vector<std::byte> data, scales;
  WeightView view;
};

// Args: tokens, format.
void BM_Linear(benchmark::State& state) {
  const auto tokens = static_cast<int32_t>(state.range(0));
  const Weights weights(static_cast<WeightFormat>(state.range(1)), 1, kHidden, kHidden);
  const std::vector<float> x = random_floats(static_cast<size_t>(tokens) * kHidden);
  std::vector<float> y(x.size());
  for (auto _ : state) {
    linear_cpu({.x = x.data(), .weight = weights.view, .y = y.data(), .num_tokens = tokens});
    benchmark::DoNotOptimize(y.data());
  }
  state.counters["multiply_adds/s"] =
      benchmark::Counter(static_cast<double>(tokens) * kHidden * kHidden,
                         benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_Linear)
    ->ArgNames({"tokens", "format"})
    ->ArgsProduct({{1, 8, 32},
                   {static_cast<int64_t>(WeightFormat::kBf16),
                    static_cast<int64_t>(WeightFormat::kMxfp8)}});

// Args: tokens, format. Eight experts, all tokens routed to all of them.
void BM_Moe(benchmark::State& state) {
  const auto tokens = static_cast<int32_t>(state.range(0));
  const auto format = static_cast<WeightFormat>(state.range(1));
  const Weights gate(format, kTopK, kIntermediate, kHidden);
  const Weights up(format, kTopK, kIntermediate, kHidden);
  const Weights down(format, kTopK, kHidden, kIntermediate);
  const std::vector<float> x = random_floats(static_cast<size_t>(tokens) * kHidden);
  const std::vector<float> topk_weights(static_cast<size_t>(tokens) * kTopK, 1.0f / kTopK);
  std::vector<int32_t> topk_ids;
  for (int32_t i = 0; i < tokens * kTopK; ++i) topk_ids.push_back(i % kTopK);
  std::vector<float> y(x.size());
  MoeParams params{.x = x.data(),
                   .topk_ids = topk_ids.data(),
                   .topk_weights = topk_weights.data(),
                   .gate = gate.view,
                   .up = up.view,
                   .down = down.view,
                   .y = y.data(),
                   .num_tokens = tokens,
                   .top_k = kTopK};
  std::vector<float> scratch(static_cast<size_t>(moe_scratch_floats(params)));
  params.scratch = scratch.data();
  for (auto _ : state) {
    moe_cpu(params);
    benchmark::DoNotOptimize(y.data());
  }
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(tokens),
                                                  benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_Moe)
    ->ArgNames({"tokens", "format"})
    ->ArgsProduct({{1, 8},
                   {static_cast<int64_t>(WeightFormat::kBf16),
                    static_cast<int64_t>(WeightFormat::kMxfp8)}});

// Args: vocabulary, top-p in percent (100 = off).
void BM_Sample(benchmark::State& state) {
  const std::vector<float> logits = random_floats(static_cast<size_t>(state.range(0)));
  const SamplingRow row{.logits = logits,
                        .temperature = 0.6f,
                        .top_p = static_cast<float>(state.range(1)) / 100.0f,
                        .uniform = 0.37};
  for (auto _ : state) benchmark::DoNotOptimize(sample_token_cpu(row).token_id);
}
BENCHMARK(BM_Sample)->ArgNames({"vocab", "top_p"})->ArgsProduct({{512, 151936}, {100, 90}});

}  // namespace
}  // namespace warproll
