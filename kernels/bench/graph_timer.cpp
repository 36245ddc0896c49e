#include "kernels/bench/graph_timer.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/error.h"

namespace warproll {

GraphTimer::GraphTimer(int num_replays) : num_replays_(num_replays) {
  WARPROLL_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  WARPROLL_CUDA_CHECK(cudaEventCreate(&begin_));
  WARPROLL_CUDA_CHECK(cudaEventCreate(&end_));
}

GraphTimer::~GraphTimer() {
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
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
  std::vector<double> us;
  for (int i = 0; i < num_replays_; ++i) {
    WARPROLL_CUDA_CHECK(cudaEventRecord(begin_, stream_));
    WARPROLL_CUDA_CHECK(cudaGraphLaunch(executable, stream_));
    WARPROLL_CUDA_CHECK(cudaEventRecord(end_, stream_));
    WARPROLL_CUDA_CHECK(cudaEventSynchronize(end_));
    float ms = 0.0f;
    WARPROLL_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    us.push_back(ms * 1e3);
  }
  WARPROLL_CUDA_CHECK(cudaGraphExecDestroy(executable));
  WARPROLL_CUDA_CHECK(cudaGraphDestroy(graph));
  std::sort(us.begin(), us.end());
  return us[us.size() / 2];
}

}  // namespace warproll
