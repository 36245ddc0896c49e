#include "worker/commands/literal_experts.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#ifdef WARPROLL_HAS_CUDA
#include "kernels/bench/random_experts.h"
#include "rollout/model/cuda/device_weights.h"
#endif

namespace warproll {
#ifdef WARPROLL_HAS_CUDA
namespace {

constexpr size_t kLayersInTurns = 8;

struct RowsAndWeights {
  std::vector<RandomExperts> experts;
  std::shared_ptr<const void> weights;
};

}  // namespace

Result<WeightSetPtr> with_literal_experts(const WeightSetPtr& weights) {
  if (weights->device == nullptr) return failed_precondition("the literal path needs a GPU");
  const ModelConfig& config = weights->config;
  auto device = std::make_shared<DeviceModelWeights>(*weights->device);
  auto kept = std::make_shared<RowsAndWeights>();
  kept->weights = weights->storage;
  size_t next = 0;
  for (DeviceLayerWeights& layer : device->layers) {
    if (!layer.is_moe) continue;
    if (layer.gate_up.format == TileFormat::kFp8Block) {
      return failed_precondition("the literal path takes BF16 and MXFP8 experts, not block FP8");
    }
    if (kept->experts.size() < kLayersInTurns) {
      kept->experts.emplace_back(
          ExpertShape{config.hidden_size, config.moe_intermediate_size, config.num_experts,
                      config.num_experts_per_tok},
          layer.gate_up.format == TileFormat::kF16 ? WeightFormat::kBf16 : WeightFormat::kMxfp8,
          /*seed=*/next + 1, /*keep_rows=*/true);
    }
    const RandomExperts& experts = kept->experts[next++ % kept->experts.size()];
    layer.gate_rows = experts.gate;
    layer.up_rows = experts.up;
    layer.down_rows = experts.down;
  }
  auto set = std::make_shared<WeightSet>(*weights);
  set->device = std::move(device);
  set->storage = std::move(kept);
  return WeightSetPtr(std::move(set));
}
#else
Result<WeightSetPtr> with_literal_experts(const WeightSetPtr&) {
  return failed_precondition("the literal path needs a GPU, and this build has no CUDA");
}
#endif

}  // namespace warproll
