#include "worker/node/worker_memory.h"

#include <algorithm>

#include "weights_sync/arena_device.h"
#include "weights_sync/tile_pieces.h"

namespace warproll {
namespace {

constexpr int32_t kMaxBlocks = 1 << 30;

// K and V, all layers.
uint64_t kv_block_bytes(const ModelDevice& device, const ModelConfig& model, int64_t block_tokens) {
  return static_cast<uint64_t>(int64_t{2} * model.num_layers * block_tokens * model.num_kv_heads *
                               model.head_dim * device.runner.kv_value_bytes);
}

uint64_t receive_bytes(const ArenaLayout& layout) {
  uint64_t largest = 0;
  for (const ArenaSlot& slot : layout.slots) {
    for (const SlotSource& source : slot.sources) {
      uint64_t bytes = dtype_bytes(source.dtype);
      for (const int64_t size : source.shape) bytes *= static_cast<uint64_t>(size);
      largest = std::max(largest, bytes);
    }
  }
  return device_receive_bytes(largest);
}

}  // namespace

ModelDeviceOptions device_options(const WorkerConfig& config) {
  ModelDeviceOptions options;
  options.device = config.engine.device;
  options.gpu_index = static_cast<int32_t>(config.engine.gpu);
  options.activation_dtype = config.model.activation_dtype;
  options.batch_invariant = config.engine.batch_invariant;
  const std::vector<std::string>& transports = config.weights.transports;
  const bool over_nccl =
      std::find(transports.begin(), transports.end(), "nccl") != transports.end();
  const int64_t wanted = over_nccl ? config.weights.nccl_max_ctas : 0;
  options.spare_sms =
      static_cast<int32_t>(config.engine.spare_sms >= 0 ? config.engine.spare_sms : wanted);
  return options;
}

EngineConfig engine_config(const WorkerConfig& worker, int32_t num_kv_blocks) {
  const WorkerConfig::Engine& engine = worker.engine;
  EngineConfig config;
  config.max_batch_tokens = static_cast<int32_t>(engine.max_batch_tokens);
  config.prefill_chunk_tokens =
      static_cast<int32_t>(std::min(engine.prefill_chunk_tokens, engine.max_batch_tokens));
  config.max_running_sequences = static_cast<int32_t>(engine.max_running_sequences);
  config.max_queued_requests = static_cast<int32_t>(engine.max_queued_samples);
  config.max_context_tokens = static_cast<int32_t>(engine.max_context_tokens);
  config.block_tokens = static_cast<int32_t>(engine.kv_block_tokens);
  config.num_blocks = num_kv_blocks;
  return config;
}

RandomModel random_model(const WorkerConfig& config) {
  return {config.model.checkpoint + "/config.json", config.model.random_weights,
          static_cast<uint64_t>(config.model.random_seed)};
}

Result<ModelTensors> initial_tensors(const WorkerConfig& config) {
  if (config.model.load == "random") {
    WARPROLL_TRY_ASSIGN(random, describe_random_model(random_model(config)));
    return ModelTensors{std::move(random.files), std::move(random.tensors)};
  }
  WARPROLL_TRY_ASSIGN(checkpoint, Checkpoint::open(config.model.checkpoint));
  return ModelTensors{checkpoint.files(),
                      {checkpoint.tensors().begin(), checkpoint.tensors().end()}};
}

MemoryNeeds gpu_memory_needs(const ModelDevice& device, const ModelConfig& model,
                             const ArenaLayout& layout, const EngineConfig& engine) {
  MemoryNeeds needs;
  needs.free_bytes = free_gpu_bytes(device);
  needs.arena_bytes = layout.total_bytes;
  needs.workspace_bytes = workspace_bytes(device, model, backend_sizes(engine, model));
  needs.staging_bytes = kTileStagingBytes;
  needs.kv_block_bytes = kv_block_bytes(device, model, engine.block_tokens);
  return needs;
}

Result<MemoryPlan> plan_worker_memory(const WorkerConfig& config, const ModelDevice& device) {
  const std::string where = "model.checkpoint " + config.model.checkpoint;
  const Result<ModelTensors> start = initial_tensors(config);
  if (!start.ok()) return start.status().with_context(where);
  const Result<ModelConfig> parsed = model_config_of(start->files);
  if (!parsed.ok()) return parsed.status().with_context(where);
  const ModelConfig& model = *parsed;
  const auto wanted = static_cast<uint64_t>(config.engine.kv_memory_mb) << 20;
  if (!device.on_gpu()) {
    if (config.model.load == "random") {
      return invalid_argument(
          "model.load is random, which draws weights on a GPU, and the model runs on a " +
          device.description);
    }
    if (wanted == 0) {
      return invalid_argument(
          "engine.kv_memory_mb is 0 (what the GPU has left), wanted a size on a CPU");
    }
    MemoryPlan plan;  // in host memory the KV cache is what the configuration says
    plan.num_kv_blocks = static_cast<int32_t>(std::min<uint64_t>(
        wanted / kv_block_bytes(device, model, config.engine.kv_block_tokens), kMaxBlocks));
    return plan;
  }
  WARPROLL_TRY(
      check_step_tokens(device, config.engine.max_batch_tokens, "engine.max_batch_tokens"));
  const LayoutFunction layout_of =
      make_layout_function(config.model.quantise == "mxfp8", std::nullopt, /*on_gpu=*/true);
  const Result<ArenaLayout> layout = layout_of(start->files, start->tensors);
  if (!layout.ok()) return layout.status().with_context(where);
  MemoryNeeds needs = gpu_memory_needs(device, model, *layout, engine_config(config, 1));
  needs.receive_bytes = receive_bytes(*layout);
  needs.wanted_kv_bytes = wanted;
  needs.swap = config.weights.swap;
  return plan_memory(needs);
}

}  // namespace warproll
