// Random weights: a device arena filled without files, for benches and smoke tests. Matrices are
// N(0, 0.02), norms are 1, all drawn on the device from a seed: the same seed gives the same bytes on
// the same kind of GPU. They go through the arena's filler like a checkpoint's, digests and all.
// Thread: pure functions. Errors: what the filler refuses; a dtype that cannot be drawn.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "protocol/status.h"
#include "weights_sync/checkpoint.h"
#include "weights_sync/weight_arenas.h"
#include "weights_sync/weight_filler.h"

namespace warproll {

struct RandomWeights {
  CheckpointFiles files;            // config.json at least: what the layout function reads
  std::vector<TensorInfo> tensors;  // BF16, or E4M3 with U8 "<name>_scale_inv" beside it (MXFP8);
                                    // rollout/model/synthetic_tensors.h lists a config's
  uint64_t seed = 0;
};

// Draws every tensor and gives it to `filler`, which must be of the current device, then finish().
// Extra device memory: about two of the largest tensor, at least 64 MiB.
Result<FilledArena> fill_random(std::span<const TensorInfo> tensors, uint64_t seed,
                                WeightFiller& filler);

// As load_staged (weight_staging.h), of weights that are drawn. `arenas` are on a device.
Result<StagedWeightsPtr> load_random(const RandomWeights& weights, uint64_t weight_version,
                                     const LayoutFunction& layout, WeightArenas& arenas);

}  // namespace warproll
