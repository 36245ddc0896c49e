// The kernels that filling a device arena is made of, against the CPU, and their speed.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "kernels/not_finite.h"
#include "kernels/xxh3.h"
#include "tests/weights_sync/gpu/device_fill_support.h"
#include "weights_sync/tensor_scan.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;

TEST(Xxh3Gpu, gives_the_digests_of_the_cpu) {
  SKIP_WITHOUT_GPU();
  const ArenaDevicePtr device = make_cuda_arena_device().value();
  std::mt19937_64 random(5);
  const std::vector<std::byte> bytes = random_bytes(5 << 20, random);
  const DeviceBuffer<std::byte> copy(bytes);
  std::vector<uint64_t> sizes = {0,    1,    16,   240,  241,  255,  256,  257,     1023,   1024,
                                 1025, 1087, 1088, 1089, 2047, 2048, 2049, 1 << 20, 5 << 20};
  for (int i = 0; i < 60; ++i) sizes.push_back(random() % bytes.size());
  for (uint64_t chunks = 1; chunks < 4; ++chunks) {
    for (const uint64_t rest : {1, 240, 241, 1025}) sizes.push_back((chunks << 20) + rest);
  }
  for (const uint64_t size : sizes) {
    EXPECT_EQ(to_hex(device->digest({copy.data(), size})),
              to_hex(tensor_digest(std::span(bytes).first(size))))
        << size;
  }
}

TEST(NotFiniteGpu, finds_what_the_cpu_finds) {
  SKIP_WITHOUT_GPU();
  std::mt19937_64 random(6);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16, Dtype::kF8E4M3, Dtype::kF8E8M0,
                            Dtype::kU8, Dtype::kI32}) {
    const uint64_t element = dtype_bytes(dtype);
    for (const uint64_t count :
         {uint64_t{1}, uint64_t{17}, uint64_t{100'003}, uint64_t{3'000'001}}) {
      for (int bad = 0; bad < 4; ++bad) {
        std::vector<std::byte> bytes(count * element);
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0x3f);
        for (int i = 0; i < bad; ++i) {
          const uint64_t at = random() % count;
          for (uint64_t b = 0; b < element; ++b) bytes[at * element + b] = std::byte{0xff};
        }
        const DeviceBuffer<std::byte> copy(bytes);
        const DeviceBuffer<uint64_t> key(std::vector<uint64_t>{kNoneNotFinite});
        find_not_finite_key({copy.data(), bytes.size(), dtype, key.data()}, nullptr);
        const uint64_t got = key.to_host().front();
        const auto wanted = find_not_finite(dtype, bytes);
        ASSERT_EQ(got != kNoneNotFinite, wanted.has_value()) << to_string(dtype) << " " << count;
        if (!wanted) continue;
        EXPECT_EQ(not_finite_of(dtype, got).index, *wanted);
        EXPECT_EQ(not_finite_of(dtype, got).bits, element == 4   ? 0xffffffffu
                                                  : element == 2 ? 0xffffu
                                                                 : 0xffu);
      }
    }
  }
}

template <typename Work>
double median_ms(const Work& work) {
  cudaEvent_t begin, end;
  WARPROLL_CUDA_CHECK(cudaEventCreate(&begin));
  WARPROLL_CUDA_CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 12; ++i) {
    WARPROLL_CUDA_CHECK(cudaEventRecord(begin, nullptr));
    work();
    WARPROLL_CUDA_CHECK(cudaEventRecord(end, nullptr));
    WARPROLL_CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    WARPROLL_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 2) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return times[times.size() / 2];
}

TEST(SpeedGpu, of_digest_and_scan) {
  SKIP_WITHOUT_GPU();
  std::mt19937_64 random(7);
  constexpr uint64_t kLargest = uint64_t{1} << 30;
  std::vector<std::byte> bytes = random_bytes(16 << 20, random);
  for (std::byte& byte : bytes) byte &= std::byte{0x3f};
  const DeviceBuffer<std::byte> data(kLargest);
  for (uint64_t at = 0; at < kLargest; at += bytes.size()) {
    WARPROLL_CUDA_CHECK(
        cudaMemcpy(data.data() + at, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  }
  const DeviceBuffer<std::byte> digests(16 << 10);
  const DeviceBuffer<uint64_t> key(std::vector<uint64_t>{kNoneNotFinite});
  for (const uint64_t size : {uint64_t{1} << 20, uint64_t{3} << 19, uint64_t{64} << 20, kLargest}) {
    const double digest = median_ms([&] {
      xxh3_chunks({data.data(), size, digests.data()}, nullptr);
    });
    const double scan = median_ms([&] {
      find_not_finite_key({data.data(), size, Dtype::kBf16, key.data()}, nullptr);
    });
    std::printf("%8.1f MiB: digest %.4f ms, %.0f GB/s; scan %.4f ms, %.0f GB/s\n",
                static_cast<double>(size) / (1 << 20), digest,
                static_cast<double>(size) / digest / 1e6, scan,
                static_cast<double>(size) / scan / 1e6);
  }
}

}  // namespace
}  // namespace warproll
