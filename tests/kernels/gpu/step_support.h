// What the GPU tests of the step's ops share: buffers between canaries, random BF16, rows by number, how
// two BF16 tensors agree, graphs. Thread: one test. Errors: CudaError.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "gpu_support.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/dtype.h"
#include "kernels/weight.h"

namespace warproll::testing {

inline constexpr int32_t kTokenCounts[] = {0, 1, 2, 33, 200};
inline constexpr int32_t kHiddenSizes[] = {32, 64, 2048, 2880};
inline constexpr Dtype kWeightDtypes[] = {Dtype::kBf16, Dtype::kF16, Dtype::kF32};

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

inline size_t count_of(int64_t a, int64_t b, int64_t c = 1) {
  return static_cast<size_t>(a * b * c);
}

inline Bits random_bf16(size_t count, std::mt19937& rng, float sigma = 1.0f) {
  std::normal_distribution<float> normal(0.0f, sigma);
  Bits out(count);
  for (uint16_t& v : out) v = f32_to_bf16(normal(rng));
  return out;
}

inline std::vector<float> to_floats(const Bits& bits) {
  std::vector<float> out(bits.size());
  std::transform(bits.begin(), bits.end(), out.begin(), bf16_to_f32);
  return out;
}
// Of values that are BF16 already.
inline Bits to_bits(const std::vector<float>& values) {
  Bits out(values.size());
  std::transform(values.begin(), values.end(), out.begin(), f32_to_bf16);
  return out;
}

// A weight of `dtype` on the host, N(mean, sigma).
inline std::vector<std::byte> random_weights(size_t count, Dtype dtype, std::mt19937& rng,
                                             float mean, float sigma) {
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
inline int32_t ordinal(uint16_t bits) {
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

inline WeightView table(WeightFormat format, const std::byte* data, int32_t vocab, int32_t hidden) {
  WeightView view;
  view.format = format;
  view.data = data;
  view.rows = vocab;
  view.cols = hidden;
  return view;
}

}  // namespace warproll::testing
