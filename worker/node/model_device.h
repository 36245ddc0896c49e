// ModelDevice: which device runs the model, a CPU or a GPU, and all that follows from it: the engine's
// backend, the activations, and where weight arenas lie. The one place that knows both.
// Thread: pure functions; a GPU's errors are CudaError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "protocol/status.h"
#include "rollout/engine/backend.h"
#include "weights_sync/weight_arenas.h"

namespace warproll {

struct ModelDeviceOptions {
  std::string device = "auto";  // "auto" (a GPU if this build and machine have one), "cpu", "cuda"
  std::string activation_dtype =
      "auto";  // "auto" (f32 on a CPU, bf16 on a GPU), "f32", "bf16", "f16"
  int32_t gpu_index = 0;
  bool batch_invariant = true;    // GPU: one order of every sum, whatever the batch
  int32_t spare_sms = 0;          // GPU: SMs that decoding leaves to NCCL; of the whole process
  bool time_ops = false;          // GPU: of benches
  std::string moe_path = "auto";  // GPU: also "warp_decode", "expert_centric", "literal"
};

// Ends the engine_version of records that were made on a GPU.
inline constexpr std::string_view kCudaEngineMark = " cuda";

class ServingArena;  // weights_sync/cuda/serving_arena.h

struct ModelDevice {
  ModelRunner runner;
  ArenaDevicePtr arenas;  // null: host memory
  // Not null: versions stay in host memory, and the one that serves is copied here.
  std::shared_ptr<ServingArena> serving_arena;
  int32_t gpu_index = 0;
  bool batch_invariant = true;
  std::string description;  // "cpu", "cuda 0: NVIDIA H200, 139.8 GiB"
  [[nodiscard]] bool on_gpu() const { return arenas != nullptr; }
};

// kInvalidArgument names the key; kFailedPrecondition says why there is no such GPU.
Result<ModelDevice> open_model_device(const ModelDeviceOptions& options);

// Whether a step may have so many tokens. kInvalidArgument names `option`.
Status check_step_tokens(const ModelDevice& device, int64_t tokens, std::string_view option);

// Of a GPU: its arenas are in host memory from here on, and this much on the device serves.
Status stage_on_host(ModelDevice& device, uint64_t arena_bytes);
// A step under the weights of `staged` reads this memory; with a serving arena, after serve_from().
const std::byte* serving_memory(const ModelDevice& device, const StagedWeights& staged);
// Copies the version into the serving arena; nothing to do without one. No step may be under way.
void serve_from(const ModelDevice& device, const StagedWeights& staged);

uint64_t free_gpu_bytes(const ModelDevice& device);
// Of the forward pass on the GPU.
uint64_t workspace_bytes(const ModelDevice& device, const ModelConfig& config,
                         const BackendSizes& sizes);

}  // namespace warproll
