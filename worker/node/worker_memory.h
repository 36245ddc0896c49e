// From a worker's configuration to what its model takes: the device, the tensors it starts from, the
// engine's sizes and the memory. Used by the node and by `warproll doctor`. Thread: pure functions.
// Errors name the key, the value got and the value wanted.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/status.h"
#include "rollout/engine/engine_config.h"
#include "worker/config/worker_config.h"
#include "worker/node/memory_plan.h"
#include "worker/node/model_device.h"
#include "worker/node/serving_model.h"

namespace warproll {

ModelDeviceOptions device_options(const WorkerConfig& config);
EngineConfig engine_config(const WorkerConfig& config, int32_t num_kv_blocks);

RandomModel random_model(const WorkerConfig& config);  // of model.load: random
// What the model starts from: the files and tensors of the checkpoint, or those it would have.
struct ModelTensors {
  CheckpointFiles files;
  std::vector<TensorInfo> tensors;
};
Result<ModelTensors> initial_tensors(const WorkerConfig& config);

// What follows from the model and the engine's sizes: all but what an update needs and what is wanted.
MemoryNeeds gpu_memory_needs(const ModelDevice& device, const ModelConfig& model,
                             const ArenaLayout& layout, const EngineConfig& engine);

// Before anything large is allocated. On a CPU there is only the KV cache, and no text.
Result<MemoryPlan> plan_worker_memory(const WorkerConfig& config, const ModelDevice& device);

}  // namespace warproll
