// A WorkerNode's device: which it is, how its memory is divided, and how new weights come to serve.
#include <algorithm>
#include <chrono>

#include "worker/node/memory_plan.h"
#include "worker/node/worker_node.h"

namespace warproll {
namespace {

constexpr std::chrono::minutes kLongestStep(5);
constexpr int32_t kMaxBlocks = 1 << 30;
// Of the kernels: tokens of a step, and of one whose experts all take warp decode.
constexpr int64_t kMaxStepTokens = 8192;
constexpr int64_t kMaxInvariantTokens = 1024;

int64_t kv_block_bytes(const ModelConfig& model, int64_t block_tokens, int32_t value_bytes) {
  return int64_t{2} * model.num_layers * block_tokens * model.num_kv_heads * model.head_dim *
         value_bytes;
}

}  // namespace

Status WorkerNode::open_device() {
  ModelDeviceOptions options;
  options.device = config_.engine.device;
  options.gpu_index = static_cast<int32_t>(config_.engine.gpu);
  options.activation_dtype = config_.model.activation_dtype;
  options.batch_invariant = config_.engine.batch_invariant;
  WARPROLL_TRY_ASSIGN(device, open_model_device(options));
  device_ = std::move(device);
  logger_.info("the model runs on " + device_.description);
  return ok_status();
}

EngineConfig WorkerNode::engine_config() const {
  const WorkerConfig::Engine& engine = config_.engine;
  EngineConfig config;
  config.max_batch_tokens = static_cast<int32_t>(engine.max_batch_tokens);
  config.prefill_chunk_tokens =
      static_cast<int32_t>(std::min(engine.prefill_chunk_tokens, engine.max_batch_tokens));
  config.max_running_sequences = static_cast<int32_t>(engine.max_running_sequences);
  config.max_queued_requests = static_cast<int32_t>(engine.max_queued_samples);
  config.max_context_tokens = static_cast<int32_t>(engine.max_context_tokens);
  config.block_tokens = static_cast<int32_t>(engine.kv_block_tokens);
  config.num_blocks = num_kv_blocks_;
  return config;
}

RandomModel WorkerNode::random_model() const {
  return {config_.model.checkpoint + "/config.json", config_.model.random_weights,
          static_cast<uint64_t>(config_.model.random_seed)};
}

// What the model starts from: the files and tensors of the checkpoint, or those it would have.
Result<ModelTensors> WorkerNode::initial_tensors() const {
  if (config_.model.load == "random") return random_tensors(random_model());
  WARPROLL_TRY_ASSIGN(checkpoint, Checkpoint::open(config_.model.checkpoint));
  return ModelTensors{checkpoint.files(),
                      {checkpoint.tensors().begin(), checkpoint.tensors().end()}};
}

// Before anything large is allocated. In host memory the KV cache is what the configuration says.
Status WorkerNode::plan_memory() {
  const std::string where = "model.checkpoint " + config_.model.checkpoint;
  const Result<ModelTensors> start = initial_tensors();
  if (!start.ok()) return start.status().with_context(where);
  const Result<ModelConfig> config = model_config_of(start->files);
  if (!config.ok()) return config.status().with_context(where);
  const ModelConfig& model = *config;
  const auto wanted = static_cast<uint64_t>(config_.engine.kv_memory_mb) << 20;
  const int64_t block_bytes =
      kv_block_bytes(model, config_.engine.kv_block_tokens, device_.runner.kv_value_bytes);
  if (!device_.on_gpu()) {
    if (config_.model.load == "random") {
      return invalid_argument(
          "model.load is random, which draws weights on a GPU, and the model runs on a " +
          device_.description);
    }
    if (wanted == 0) {
      return invalid_argument(
          "engine.kv_memory_mb is 0 (what the GPU has left), wanted a size on a CPU");
    }
    num_kv_blocks_ = static_cast<int32_t>(
        std::min<uint64_t>(wanted / static_cast<uint64_t>(block_bytes), kMaxBlocks));
    return ok_status();
  }
  const int64_t most_tokens = device_.batch_invariant ? kMaxInvariantTokens : kMaxStepTokens;
  if (config_.engine.max_batch_tokens > most_tokens) {
    return invalid_argument("engine.max_batch_tokens is " +
                            std::to_string(config_.engine.max_batch_tokens) + ", a GPU takes " +
                            std::to_string(most_tokens) + " at most" +
                            (device_.batch_invariant ? " with engine.batch_invariant" : ""));
  }
  const LayoutFunction layout_of =
      make_layout_function(config_.model.quantise == "mxfp8", std::nullopt, /*on_gpu=*/true);
  const Result<ArenaLayout> layout = layout_of(start->files, start->tensors);
  if (!layout.ok()) return layout.status().with_context(where);
  MemoryNeeds needs;
  needs.free_bytes = free_gpu_bytes(device_);
  needs.arena_bytes = layout->total_bytes;
  needs.workspace_bytes = workspace_bytes(device_, model, backend_sizes(engine_config(), model));
  needs.receive_bytes = receive_bytes(*layout);
  needs.kv_block_bytes = static_cast<uint64_t>(block_bytes);
  needs.wanted_kv_bytes = wanted;
  needs.swap = config_.weights.swap;
  WARPROLL_TRY_ASSIGN(plan, warproll::plan_memory(needs));
  logger_.info(plan.text);
  num_kv_blocks_ = plan.num_kv_blocks;
  if (plan.host_staged) WARPROLL_TRY(stage_on_host(device_, layout->total_bytes));
  return ok_status();
}

// What an update has in device memory while it comes: tensors on their way, a transport's buckets.
uint64_t WorkerNode::receive_bytes(const ArenaLayout& layout) const {
  uint64_t largest = 0;
  for (const ArenaSlot& slot : layout.slots) {
    for (const SlotSource& source : slot.sources) {
      uint64_t bytes = dtype_bytes(source.dtype);
      for (const int64_t size : source.shape) bytes *= static_cast<uint64_t>(size);
      largest = std::max(largest, bytes);
    }
  }
  constexpr uint64_t kBuffers = uint64_t{256} << 20;
  return std::max(kBuffers, 2 * largest) + kBuffers;
}

Result<InstallReport> WorkerNode::install(const StagedWeightsPtr& staged) {
  WARPROLL_TRY_ASSIGN(weights, make_weight_set(staged, device_));
  if (prepare_weights_) prepare_weights_(*weights);
  const Result<SwapReport> swap =
      engine_->install_weights(std::move(weights), std::chrono::steady_clock::now() + kLongestStep,
                               [this, staged] { serve_from(device_, *staged); });
  // The flip may still come after that: what is served would no longer be what is reported.
  if (swap.status().code() == StatusCode::kDeadlineExceeded) fail(swap.status());
  WARPROLL_TRY(swap.status());
  InstallReport report;
  report.stall_us = swap->stall_us;
  report.stall_steps = swap->stall_steps;
  report.in_flight_sequences = swap->in_flight_sequences;
  logger_.info("now serves version " + std::to_string(staged->weight_version) + ", digest " +
               to_hex(staged->weight_digest) + ", stall " + std::to_string(report.stall_us) +
               " us with " + std::to_string(report.in_flight_sequences) + " sequences in flight");
  return report;
}

}  // namespace warproll
