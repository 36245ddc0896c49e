// DeviceBuffer<T>: owns `size` T of device memory. Move-only. Thread: any. Errors: CudaError, also
// when the device is out of memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/error.h"

namespace warproll {

template <typename T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(size_t size) : size_(size) {
    if (size > 0)
      WARPROLL_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T)));
  }
  explicit DeviceBuffer(std::span<const T> values) : DeviceBuffer(values.size()) {
    copy_from(values);
  }
  explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(std::span<const T>(values)) {}
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] size_t size() const { return size_; }

  // Blocking copies.
  void copy_from(std::span<const T> values) {
    if (values.empty()) return;
    WARPROLL_CUDA_CHECK(
        cudaMemcpy(data_, values.data(), values.size_bytes(), cudaMemcpyHostToDevice));
  }
  [[nodiscard]] std::vector<T> to_host() const {
    std::vector<T> values(size_);
    if (size_ > 0) {
      WARPROLL_CUDA_CHECK(
          cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    }
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace warproll
