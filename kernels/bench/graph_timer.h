// GraphTimer: captures work into a CUDA graph and times its replays. Thread: one.
// Errors: CudaError.
#pragma once

#include <cuda_runtime.h>

#include <functional>

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
  int num_replays_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace warproll
