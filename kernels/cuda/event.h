// CudaEvent: owns an event that takes no time. Move-only. Thread: any. Errors: CudaError.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "kernels/cuda/error.h"

namespace warproll {

class CudaEvent {
 public:
  CudaEvent() { WARPROLL_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~CudaEvent() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  CudaEvent(CudaEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }

  [[nodiscard]] cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream) const { WARPROLL_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  void synchronize() const { WARPROLL_CUDA_CHECK(cudaEventSynchronize(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace warproll
