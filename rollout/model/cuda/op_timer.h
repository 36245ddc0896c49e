// OpTimer: what each op of a step takes on the device, by name, summed over layers and steps. Events
// stand between the ops, so no op overlaps the one before it as they do without a timer: the sum is
// more than a step. Not for graphs. Thread: one owner. Errors: CudaError.
#pragma once

#include <utility>
#include <vector>

#include "kernels/cuda/error.h"
#include "kernels/cuda/stream.h"
#include "rollout/model/op_time.h"

namespace warproll {

class OpTimer {
 public:
  OpTimer() = default;
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;
  ~OpTimer();

  void begin_step(cudaStream_t stream);
  // Everything put on the stream since the last mark was this op. `name` is kept as a pointer.
  void mark(const char* name, cudaStream_t stream);
  // Of the steps so far, in the order the names came first; forgets them. Waits for the device.
  std::vector<OpTime> take();

 private:
  cudaEvent_t next_event();

  std::vector<cudaEvent_t> events_;
  std::vector<std::pair<size_t, const char*>> marks_;  // event, name; null = the step's begin
  size_t used_ = 0;
  int num_steps_ = 0;
};

}  // namespace warproll
