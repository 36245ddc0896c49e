// Experts as rows for `bench decode --moe-path literal`: random ones beside the arena's tiles, which the
// published kernels cannot read. A few layers' worth in turns: more than any cache holds.
// Thread: main. Errors: CudaError, also when the device is out of memory.
#pragma once

#include "protocol/status.h"
#include "rollout/model/weights.h"

namespace warproll {

// `weights` with rows in every MoE layer, in the experts' format; holds them. kFailedPrecondition: it
// is not on a GPU, or its experts are in a format the literal kernels do not take.
Result<WeightSetPtr> with_literal_experts(const WeightSetPtr& weights);

}  // namespace warproll
