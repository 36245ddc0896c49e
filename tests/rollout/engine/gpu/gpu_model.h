// Golden checkpoints in the memory of a GPU, for tests of the engine there. Thread: one test.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/device_info.h"
#include "rollout/engine/cuda/cuda_backend.h"
#include "rollout/engine/engine_core.h"
#include "rollout/model/cuda/device_weights.h"
#include "tests/golden_dir.h"
#include "tests/rollout/engine/real_model.h"
#include "weights_sync/cuda/cuda_arena_device.h"
#include "weights_sync/weight_staging.h"

namespace warproll::testing {

// Skips the test, loudly, where there is no GPU.
#define SKIP_WITHOUT_GPU() \
  if (list_gpus().empty()) GTEST_SKIP() << "NO GPU HERE: this test was not run"

inline ArenaDevicePtr gpu_arenas() { return std::move(make_cuda_arena_device()).value(); }

// Into the standby arena of `arenas`. Throws std::logic_error with the reason.
inline WeightSetPtr load_on_gpu(const std::string& name, WeightArenas& arenas,
                                uint64_t weight_version = 1, bool quantise = false) {
  const auto layout = [quantise](const CheckpointFiles& files,
                                 std::span<const TensorInfo> tensors) -> Result<ArenaLayout> {
    WARPROLL_TRY_ASSIGN(config, config_of(files));
    WARPROLL_TRY_ASSIGN(rows, make_arena_layout(config, tensors, quantise));
    return make_device_layout(config, rows);
  };
  const Checkpoint checkpoint = std::move(Checkpoint::open(golden_dir() + "/" + name)).value();
  const StagedWeightsPtr staged =
      std::move(load_staged(checkpoint, weight_version, layout, arenas)).value();
  auto weights = std::make_shared<WeightSet>();
  weights->weight_version = weight_version;
  weights->weight_digest = staged->weight_digest;
  weights->config = std::move(config_of(staged->files)).value();
  weights->device = std::make_shared<const DeviceModelWeights>(
      std::move(bind_device_weights(weights->config, staged->layout, staged->arena.data()))
          .value());
  weights->storage = staged;
  return weights;
}

inline WeightSetPtr load_on_gpu(const std::string& name, uint64_t weight_version = 1) {
  WeightArenas arenas(0, gpu_arenas());  // the weights outlive it
  return load_on_gpu(name, arenas, weight_version);
}

inline std::vector<WeightSetPtr> load_arith_on_gpu() {
  return {load_on_gpu("arith-v1", 1), load_on_gpu("arith-v2", 2), load_on_gpu("arith-v3", 3)};
}

}  // namespace warproll::testing
