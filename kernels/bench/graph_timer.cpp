#include "kernels/bench/graph_timer.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/error.h"

namespace warproll {

GraphTimer::GraphTimer(int num_replays) : marks_(static_cast<size_t>(num_replays) + 1) {
  WARPROLL_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  for (cudaEvent_t& mark : marks_) WARPROLL_CUDA_CHECK(cudaEventCreate(&mark));
}

GraphTimer::~GraphTimer() {
  for (const cudaEvent_t mark : marks_) cudaEventDestroy(mark);
  cudaStreamDestroy(stream_);
}

double GraphTimer::median_us(const std::function<void(cudaStream_t)>& work) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  WARPROLL_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  work(stream_);
  WARPROLL_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
  WARPROLL_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 3; ++i) WARPROLL_CUDA_CHECK(cudaGraphLaunch(executable, stream_));
  // All queued before the first is waited for, so that no launch is waited for by the GPU.
  for (size_t i = 0; i < marks_.size(); ++i) {
    WARPROLL_CUDA_CHECK(cudaEventRecord(marks_[i], stream_));
    if (i + 1 < marks_.size()) WARPROLL_CUDA_CHECK(cudaGraphLaunch(executable, stream_));
  }
  WARPROLL_CUDA_CHECK(cudaStreamSynchronize(stream_));
  std::vector<double> us;
  for (size_t i = 0; i + 1 < marks_.size(); ++i) {
    float ms = 0.0f;
    WARPROLL_CUDA_CHECK(cudaEventElapsedTime(&ms, marks_[i], marks_[i + 1]));
    us.push_back(ms * 1e3);
  }
  WARPROLL_CUDA_CHECK(cudaGraphExecDestroy(executable));
  WARPROLL_CUDA_CHECK(cudaGraphDestroy(graph));
  std::sort(us.begin(), us.end());
  return us[us.size() / 2];
}

}  // namespace warproll
