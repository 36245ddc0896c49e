// CudaEvent: owns an event without timing, for order between streams. Move-only. Thread: any.
// Errors: CudaError.
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

  void record(cudaStream_t stream) const { WARPROLL_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  // false: the GPU has a fault, which the next call throws.
  [[nodiscard]] bool try_record(cudaStream_t stream) const noexcept {
    return cudaEventRecord(event_, stream) == cudaSuccess;
  }
  // `stream` goes on once what was recorded last has ended; at once if nothing was.
  void hold(cudaStream_t stream) const {
    WARPROLL_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0));
  }
  void synchronize() const { WARPROLL_CUDA_CHECK(cudaEventSynchronize(event_)); }
  [[nodiscard]] bool ended() const {
    const cudaError_t code = cudaEventQuery(event_);
    if (code != cudaErrorNotReady) WARPROLL_CUDA_CHECK(code);
    return code == cudaSuccess;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace warproll
