// What a request asks of a row of logits, as kernels/sampling.h takes it. Thread: pure function.
#pragma once

#include "kernels/sampling.h"
#include "protocol/records.h"

namespace warproll {

inline RowSampling row_sampling(const SamplingParams& sampling, double uniform) {
  return {sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, uniform};
}

}  // namespace warproll
