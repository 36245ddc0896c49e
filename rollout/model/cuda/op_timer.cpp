#include "rollout/model/cuda/op_timer.h"

#include <algorithm>

namespace warproll {

OpTimer::~OpTimer() {
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
}

cudaEvent_t OpTimer::next_event() {
  if (used_ == events_.size()) {
    events_.emplace_back();
    WARPROLL_CUDA_CHECK(cudaEventCreate(&events_.back()));
  }
  return events_[used_++];
}

void OpTimer::begin_step(cudaStream_t stream) {
  ++num_steps_;
  mark(nullptr, stream);
}

void OpTimer::mark(const char* name, cudaStream_t stream) {
  marks_.emplace_back(used_, name);
  WARPROLL_CUDA_CHECK(cudaEventRecord(next_event(), stream));
}

std::vector<OpTime> OpTimer::take() {
  std::vector<OpTime> times;
  if (!marks_.empty()) WARPROLL_CUDA_CHECK(cudaEventSynchronize(events_[marks_.back().first]));
  for (size_t i = 1; i < marks_.size(); ++i) {
    if (marks_[i].second == nullptr) continue;
    float ms = 0;
    WARPROLL_CUDA_CHECK(
        cudaEventElapsedTime(&ms, events_[marks_[i - 1].first], events_[marks_[i].first]));
    const auto same = std::find_if(times.begin(), times.end(), [&](const OpTime& time) {
      return time.name == marks_[i].second;
    });
    OpTime& time =
        same == times.end() ? times.emplace_back(OpTime{.name = marks_[i].second}) : *same;
    time.us += 1e3 * static_cast<double>(ms) / num_steps_;
  }
  marks_.clear();
  used_ = 0;
  num_steps_ = 0;
  return times;
}

}  // namespace warproll
