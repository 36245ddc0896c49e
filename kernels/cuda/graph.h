// CudaGraph: the work that a function puts on a stream, captured once and launched as often as
// wanted. Capture is thread-local, so other threads may use the device meanwhile.
// Move-only. Thread: one at a time. Errors: CudaError; what the function throws is passed on.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "kernels/cuda/error.h"
#include "kernels/cuda/stream_owner.h"

namespace warproll {

class CudaGraph {
 public:
  CudaGraph() = default;
  // `enqueue(cudaStream_t)` must not wait for the device or allocate.
  template <typename Enqueue>
  static CudaGraph capture(const Enqueue& enqueue) {
    const CudaStream stream;
    WARPROLL_CUDA_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
      enqueue(stream.get());
    } catch (...) {
      cudaStreamEndCapture(stream.get(), &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    WARPROLL_CUDA_CHECK(cudaStreamEndCapture(stream.get(), &graph));
    CudaGraph captured;
    const cudaError_t code = cudaGraphInstantiate(&captured.graph_, graph, 0);
    cudaGraphDestroy(graph);
    WARPROLL_CUDA_CHECK(code);
    // Its kernels and parameters go to the device now rather than with the first launch.
    WARPROLL_CUDA_CHECK(cudaGraphUpload(captured.graph_, stream.get()));
    return captured;
  }
  ~CudaGraph() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }
  CudaGraph(CudaGraph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  CudaGraph& operator=(CudaGraph&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }

  void launch(cudaStream_t stream) const { WARPROLL_CUDA_CHECK(cudaGraphLaunch(graph_, stream)); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace warproll
