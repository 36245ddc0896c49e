// Random weights, and how fast an arena of Qwen3-30B-A3B's shapes fills: three layers of it, digest,
// scan, quantise and pack included.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>

#include "kernels/dtype.h"
#include "kernels/random_normal.h"
#include "rollout/model/synthetic_tensors.h"
#include "tests/weights_sync/gpu/device_fill_support.h"
#include "weights_sync/cuda/random_weights.h"
#include "weights_sync/parallel.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

CheckpointFiles qwen3_30b_files() {
  CheckpointFiles files;
  files.config_json =
      read_bytes(std::string(WARPROLL_SOURCE_DIR) + "/configs/models/qwen3-30b-a3b.json");
  return files;
}

ModelConfig small_qwen3_30b(int32_t layers) {
  ModelConfig config = config_of(qwen3_30b_files());
  config.num_layers = layers;
  config.is_moe_layer.resize(static_cast<size_t>(layers));
  config.vocab_size = 16384;
  return config;
}

ArenaLayout layout_of(const ModelConfig& config, const std::vector<TensorInfo>& tensors,
                      bool quantise = false) {
  return make_device_layout(config, make_arena_layout(config, tensors, quantise).value()).value();
}

uint64_t total_bytes(const std::vector<TensorInfo>& tensors) {
  uint64_t bytes = 0;
  for (const TensorInfo& tensor : tensors) bytes += tensor.bytes;
  return bytes;
}

TEST(RandomNormalGpu, has_its_mean_and_spread_and_does_not_depend_on_where_a_call_begins) {
  SKIP_WITHOUT_GPU();
  constexpr uint64_t kCount = 1'000'003;
  const DeviceBuffer<uint16_t> values(kCount), tail(3);
  random_normal({.out = values.data(), .count = kCount, .seed = 9, .sigma = 0.02f}, nullptr);
  random_normal(
      {.out = tail.data(), .first_index = 1'000'000, .count = 3, .seed = 9, .sigma = 0.02f},
      nullptr);
  const std::vector<uint16_t> host = values.to_host();
  EXPECT_EQ(tail.to_host(), std::vector<uint16_t>(host.end() - 3, host.end()));
  double sum = 0, squares = 0;
  for (const uint16_t bits : host) {
    const double value = bf16_to_f32(bits);
    ASSERT_TRUE(std::isfinite(value));
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 1e-4);
  EXPECT_NEAR(std::sqrt(squares / kCount), 0.02, 1e-4);
}

TEST(RandomWeightsGpu, the_same_seed_gives_the_same_digest_and_norms_are_one) {
  SKIP_WITHOUT_GPU();
  const ArenaDevicePtr device = make_cuda_arena_device().value();
  ModelConfig config = config_of(Checkpoint::open(golden("qwen3moe-tiny")).value().files());
  for (const SyntheticFormat format : {SyntheticFormat::kBf16, SyntheticFormat::kMxfp8Experts}) {
    const RandomWeights random = {Checkpoint::open(golden("qwen3moe-tiny")).value().files(),
                                  synthetic_tensors(config, format), 4};
    WeightArenas arenas(0, device);
    const auto one = load_random(random, 1, device_layout_function(), arenas);
    ASSERT_TRUE(one.ok()) << one.status().to_string();
    const auto two = load_random(random, 2, device_layout_function(), arenas);
    ASSERT_TRUE(two.ok()) << two.status().to_string();
    EXPECT_EQ((*one)->weight_digest, (*two)->weight_digest);
    EXPECT_EQ((*one)->layout_digest, (*two)->layout_digest);
    const DeviceModelWeights views =
        bind_device_weights(config, (*one)->layout, (*one)->arena.data()).value();
    std::vector<uint16_t> norm(static_cast<size_t>(config.hidden_size));
    WARPROLL_CUDA_CHECK(
        cudaMemcpy(norm.data(), views.final_norm, norm.size() * 2, cudaMemcpyDeviceToHost));
    EXPECT_EQ(norm, std::vector<uint16_t>(norm.size(), 0x3f80));
  }
}

TEST(SpeedGpu, of_a_whole_qwen3_30b_drawn_at_random) {
  SKIP_WITHOUT_GPU();
  const ArenaDevicePtr device = make_cuda_arena_device().value();
  for (const char* word : {"mxfp8_experts", "bf16"}) {
    const RandomWeights random = {
        qwen3_30b_files(),
        synthetic_tensors(config_of(qwen3_30b_files()), synthetic_format_from(word).value()), 1};
    WeightArenas arenas(0, device);
    const auto start = Clock::now();
    const auto staged = load_random(random, 1, device_layout_function(), arenas);
    ASSERT_TRUE(staged.ok()) << staged.status().to_string();
    std::printf("random %s: %zu tensors, %.2f GB in an arena of %.2f GB: %.2f s\n", word,
                random.tensors.size(), static_cast<double>(total_bytes(random.tensors)) / 1e9,
                static_cast<double>((*staged)->arena.size()) / 1e9, seconds_since(start));
  }
}

// Every tensor from the same host memory, on `threads` threads.
double fill_from_host(const ArenaDevicePtr& device, const ArenaLayout& layout, ArenaBuffer& arena,
                      const std::vector<TensorInfo>& tensors, std::span<const std::byte> bytes,
                      int threads) {
  const auto start = Clock::now();
  auto filler = device->make_filler(layout, arena.span(), nullptr).value();
  for_each_index(tensors.size(), threads, [&](size_t i) {
    const Status status = filler->put(tensors[i].name, bytes.first(tensors[i].bytes));
    if (!status.ok()) throw std::runtime_error(status.to_string());
  });
  const auto filled = filler->finish();
  if (!filled.ok()) throw std::runtime_error(filled.status().to_string());
  return seconds_since(start);
}

// Every tensor from the same device memory, in batches as a transport's buckets.
double fill_from_device(const ArenaDevicePtr& device, const ArenaLayout& layout, ArenaBuffer& arena,
                        const std::vector<TensorInfo>& tensors, std::span<const std::byte> bytes) {
  constexpr uint64_t kBucket = 256 << 20;
  const auto start = Clock::now();
  auto filler = device->make_filler(layout, arena.span(), nullptr).value();
  std::vector<DevicePart> parts;
  uint64_t held = 0;
  const auto flush = [&] {
    const Status status = filler->put_device(parts, nullptr);
    if (!status.ok()) throw std::runtime_error(status.to_string());
    parts.clear();
    held = 0;
  };
  for (const TensorInfo& tensor : tensors) {
    parts.push_back({tensor.name, 0, bytes.first(tensor.bytes)});
    held += tensor.bytes;
    if (held >= kBucket) flush();
  }
  flush();
  const auto filled = filler->finish();
  if (!filled.ok()) throw std::runtime_error(filled.status().to_string());
  return seconds_since(start);
}

TEST(SpeedGpu, of_filling_from_host_and_device_memory) {
  SKIP_WITHOUT_GPU();
  const ArenaDevicePtr device = make_cuda_arena_device().value();
  const ModelConfig config = small_qwen3_30b(3);
  std::mt19937_64 random(8);
  std::vector<std::byte> bytes = random_bytes(80 << 20, random);
  for (std::byte& byte : bytes) byte &= std::byte{0x3f};  // finite in any dtype
  const DeviceBuffer<std::byte> on_device(bytes);
  struct Case {
    const char* name;
    SyntheticFormat format;
    bool quantise;
  };
  for (const Case& c : {Case{"MXFP8 experts", SyntheticFormat::kMxfp8Experts, false},
                        Case{"BF16", SyntheticFormat::kBf16, false},
                        Case{"BF16, quantised", SyntheticFormat::kBf16, true}}) {
    const auto tensors = synthetic_tensors(config, c.format);
    const ArenaLayout layout = layout_of(config, tensors, c.quantise);
    ArenaBuffer arena = ArenaBuffer::allocate(layout.total_bytes, device).value();
    const auto gb = static_cast<double>(total_bytes(tensors)) / 1e9;
    for (const int threads : {1, 4, 8, 16}) {
      double best = 1e9;
      for (int i = 0; i < 3; ++i) {
        best = std::min(best, fill_from_host(device, layout, arena, tensors, bytes, threads));
      }
      std::printf("%s, %.2f GB, %zu tensors, host, %d threads: %.1f GB/s\n", c.name, gb,
                  tensors.size(), threads, gb / best);
    }
    double best = 1e9;
    for (int i = 0; i < 3; ++i) {
      best = std::min(best, fill_from_device(device, layout, arena, tensors,
                                             {on_device.data(), on_device.size()}));
    }
    std::printf("%s, %.2f GB, device: %.1f GB/s\n", c.name, gb, gb / best);
  }
}

}  // namespace
}  // namespace warproll
