// CudaStream: owns a stream that does not wait for the default one. Move-only. Thread: any.
// Errors: CudaError.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "kernels/cuda/error.h"

namespace warproll {

class CudaStream {
 public:
  enum class Priority { kLow, kHigh };
  explicit CudaStream(Priority priority = Priority::kHigh) {
    int low = 0, high = 0;
    WARPROLL_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&low, &high));
    WARPROLL_CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                                     priority == Priority::kLow ? low : high));
  }
  ~CudaStream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  CudaStream(CudaStream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  CudaStream& operator=(CudaStream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }

  [[nodiscard]] cudaStream_t get() const { return stream_; }
  void synchronize() const { WARPROLL_CUDA_CHECK(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace warproll
