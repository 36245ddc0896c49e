// ModelDevice: which device runs the model, a CPU or a GPU, and all that follows from it: the engine's
// backend, the activations, and where weight arenas lie. The one place that knows both.
// Thread: pure functions; a GPU's errors are CudaError.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/status.h"
#include "rollout/engine/backend.h"
#include "weights_sync/arena_device.h"

namespace warproll {

struct ModelDeviceOptions {
  std::string device = "auto";  // "auto" (a GPU if this build and machine have one), "cpu", "cuda"
  std::string activation_dtype =
      "auto";  // "auto" (f32 on a CPU, bf16 on a GPU), "f32", "bf16", "f16"
  int32_t gpu_index = 0;
  bool batch_invariant = true;    // GPU: one order of every sum, whatever the batch
  std::string moe_path = "auto";  // GPU: "auto", "warp_decode", "expert_centric"
};

// Ends the engine_version of records that were made on a GPU.
inline constexpr std::string_view kCudaEngineMark = " cuda";

struct ModelDevice {
  ModelRunner runner;
  ArenaDevicePtr arenas;    // null: host memory
  std::string description;  // "cpu", "cuda 0: NVIDIA H200, 139.8 GiB"
  [[nodiscard]] bool on_gpu() const { return arenas != nullptr; }
};

// kInvalidArgument names the key; kFailedPrecondition says why there is no such GPU.
Result<ModelDevice> open_model_device(const ModelDeviceOptions& options);

}  // namespace warproll
