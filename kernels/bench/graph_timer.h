// GraphTimer: captures work into a CUDA graph and times its replays, which follow each other on the
// GPU without a wait for the host, as decode steps do. Thread: one. Errors: CudaError.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <vector>

namespace warproll {

class GraphTimer {
 public:
  explicit GraphTimer(int num_replays);
  ~GraphTimer();
  GraphTimer(const GraphTimer&) = delete;
  GraphTimer& operator=(const GraphTimer&) = delete;

  // Microseconds of one replay of what `work` puts on the stream: the median, after a warm-up.
  double median_us(const std::function<void(cudaStream_t)>& work);

 private:
  cudaStream_t stream_ = nullptr;
  std::vector<cudaEvent_t> marks_;  // before each replay, and after the last
};

}  // namespace warproll
