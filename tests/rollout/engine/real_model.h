// Golden checkpoints as WeightSets, the engine over the real forward(), and the replay oracle's model
// over plain forward() calls.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "rollout/engine/engine_core.h"
#include "rollout/model/forward.h"
#include "tests/golden_dir.h"
#include "tests/rollout/engine/record_replay.h"
#include "weights_sync/arena_fill.h"
#include "weights_sync/checkpoint.h"

namespace warproll {

inline Result<ModelConfig> config_of(const CheckpointFiles& files) {
  return parse_model_config(files.config_json, files.generation_config_json,
                            files.hf_quant_config_json);
}

// Throws std::logic_error with the reason when it cannot be loaded.
inline WeightSetPtr load_weights(const std::string& name, uint64_t weight_version = 1) {
  const auto layout = [](const CheckpointFiles& files,
                         std::span<const TensorInfo> tensors) -> Result<ArenaLayout> {
    WARPROLL_TRY_ASSIGN(config, config_of(files));
    return make_arena_layout(config, tensors, false);
  };
  const Checkpoint checkpoint = std::move(Checkpoint::open(golden_dir() + "/" + name)).value();
  auto loaded = std::make_shared<LoadedWeights>(
      std::move(load_checkpoint(checkpoint, layout, {}, 1)).value());
  auto weights = std::make_shared<WeightSet>();
  weights->weight_version = weight_version;
  weights->weight_digest = loaded->weight_digest;
  weights->config = std::move(config_of(loaded->files)).value();
  weights->weights =
      std::move(bind_weights(weights->config, loaded->layout, loaded->arena.data())).value();
  weights->storage = loaded;
  return weights;
}

// The three arith checkpoints, as versions 1, 2, 3.
inline std::vector<WeightSetPtr> load_arith() {
  return {load_weights("arith-v1", 1), load_weights("arith-v2", 2), load_weights("arith-v3", 3)};
}

inline EngineParts real_parts(const WeightSetPtr& weights, const EngineConfig& config,
                              ActivationDtype activations = ActivationDtype::kF32) {
  EngineParts parts;
  parts.config = config;
  parts.backend =
      make_cpu_backend(weights->config, config.num_blocks, config.block_tokens, activations);
  parts.weights = weights;
  return parts;
}

// Plain forward() calls over one sequence's own cache, all weights by version.
class RealReplay : public ReplayModel {
 public:
  RealReplay(const std::vector<WeightSetPtr>& versions, int32_t max_tokens,
             ActivationDtype activations = ActivationDtype::kF32)
      : activations_(activations),
        num_blocks_(max_tokens / kBlockTokens + 1),
        kv_(versions.front()->config, num_blocks_, kBlockTokens, activations),
        slots_(static_cast<size_t>(num_blocks_ * kBlockTokens)),
        blocks_(static_cast<size_t>(num_blocks_)) {
    for (const WeightSetPtr& weights : versions) versions_[weights->weight_version] = weights;
    std::iota(slots_.begin(), slots_.end(), 0);
    std::iota(blocks_.begin(), blocks_.end(), 0);
  }

  void clear_cache() override { cached_ = 0; }
  void forward(std::span<const int32_t> tokens, uint64_t version, std::vector<float>& logits,
               std::vector<uint16_t>& routes) override {
    const WeightSet& weights = *versions_.at(version);
    const auto count = static_cast<int32_t>(tokens.size());
    const int32_t cu_seqlens_q[] = {0, count};
    const int32_t context_lens[] = {cached_ + count};
    const int32_t logits_rows[] = {count - 1};
    ForwardBatch batch;
    batch.token_ids = tokens;
    batch.positions =
        std::span<const int32_t>(slots_).subspan(static_cast<size_t>(cached_), tokens.size());
    batch.slot_mapping = batch.positions;
    batch.cu_seqlens_q = cu_seqlens_q;
    batch.context_lens = context_lens;
    batch.block_table = blocks_;
    batch.blocks_per_sequence = num_blocks_;
    batch.logits_rows = logits_rows;
    out_.want_routes = true;
    warproll::forward(batch, weights.config, weights.weights, activations_, kv_, out_);
    cached_ += count;
    logits = out_.logits;
    routes = out_.routes;
  }

 private:
  static constexpr int32_t kBlockTokens = 32;  // not the engine's
  const ActivationDtype activations_;
  const int32_t num_blocks_;
  KvCache kv_;
  std::vector<int32_t> slots_, blocks_;
  std::map<uint64_t, WeightSetPtr> versions_;
  ForwardOutput out_;
  int32_t cached_ = 0;
};

// Steps until every sample is out; by request id.
inline std::map<uint64_t, GeneratedSample> run_all(EngineCore& core) {
  std::map<uint64_t, GeneratedSample> samples;
  while (core.num_live() > 0) {
    core.step(std::chrono::steady_clock::now());
    for (GeneratedSample& sample : core.take_finished()) {
      const uint64_t request_id = sample.request_id;
      EXPECT_TRUE(samples.emplace(request_id, std::move(sample)).second) << request_id;
    }
  }
  return samples;
}

}  // namespace warproll
