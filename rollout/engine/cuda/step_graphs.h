// StepGraphs: CUDA graphs of decode steps, one for each shape and weight arena, captured when first
// wanted and replayed from then on. Versions that lie in the same arena at the same places share
// theirs, so after both arenas have served nothing is captured again.
// Thread: any; one mutex, held for a look only: while one thread captures, others find theirs.
// Errors: as DeviceForward.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/cuda/graph.h"
#include "rollout/model/cuda/device_weights.h"
#include "rollout/model/cuda/step_inputs.h"

namespace warproll {

class StepGraphs {
 public:
  // Puts a step of this shape on the stream.
  using Enqueue =
      std::function<void(const StepShape&, const DeviceModelWeights&, cudaStream_t stream)>;
  explicit StepGraphs(Enqueue enqueue) : enqueue_(std::move(enqueue)) {}

  // Valid as long as this object.
  const CudaGraph& graph(const StepShape& shape, const DeviceModelWeights& weights);
  // Captures for `weights` every shape that was ever asked for, so that their first step does not.
  void prepare(const DeviceModelWeights& weights);

 private:
  using Key = std::pair<uint64_t, StepShape>;  // where the weights lie
  const CudaGraph& find_or_capture(const StepShape& shape, uint64_t places,
                                   const DeviceModelWeights& weights);

  const Enqueue enqueue_;
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<const CudaGraph>> graphs_;
};

// Equal for weights whose matrices have the same formats and lie at the same addresses.
uint64_t places_of(const DeviceModelWeights& weights);

}  // namespace warproll
