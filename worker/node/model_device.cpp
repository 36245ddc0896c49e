#include "worker/node/model_device.h"

#include <cstdio>
#include <optional>

#include "worker/node/serving_model.h"
#ifdef WARPROLL_HAS_CUDA
#include "kernels/cuda/device_info.h"
#include "rollout/engine/cuda/cuda_backend.h"
#include "weights_sync/cuda/cuda_arena_device.h"
#endif

namespace warproll {
namespace {

Result<ModelDevice> open_cpu(const ModelDeviceOptions& options) {
  ModelDevice device;
  ActivationDtype activations = ActivationDtype::kF32;
  if (options.activation_dtype != "auto") {
    WARPROLL_TRY_ASSIGN(named, activation_dtype_from(options.activation_dtype));
    activations = named;
  }
  device.runner = cpu_runner(activations);
  device.description = "cpu";
  return device;
}

#ifdef WARPROLL_HAS_CUDA
Result<MoePath> moe_path_from(const std::string& text) {
  if (text == "auto") return MoePath::kAuto;
  if (text == "warp_decode") return MoePath::kWarpDecode;
  if (text == "expert_centric") return MoePath::kExpertCentric;
  return invalid_argument("MoE path '" + text + "', wanted auto, warp_decode or expert_centric");
}

Result<std::optional<ModelDevice>> open_gpu(const ModelDeviceOptions& options) {
  std::string why;
  const std::vector<GpuInfo> gpus = list_gpus(&why);
  if (gpus.empty() && options.device == "auto") return std::optional<ModelDevice>();
  if (gpus.empty()) return failed_precondition("device cuda: " + why);
  if (options.gpu_index < 0 || options.gpu_index >= static_cast<int32_t>(gpus.size())) {
    return invalid_argument("GPU " + std::to_string(options.gpu_index) + ", this machine has " +
                            std::to_string(gpus.size()));
  }
  const GpuInfo& gpu = gpus[static_cast<size_t>(options.gpu_index)];
  if (gpu.compute_major < 9) {
    return failed_precondition("device cuda: " + gpu.name + " has compute capability " +
                               std::to_string(gpu.compute_major) + "." +
                               std::to_string(gpu.compute_minor) + ", wanted 9.0 or 10.0");
  }
  if (options.activation_dtype != "auto" && options.activation_dtype != "bf16") {
    return invalid_argument("activation dtype '" + options.activation_dtype +
                            "', a GPU has bf16 alone");
  }
  use_gpu(gpu.index);
  ModelDevice device;
  WARPROLL_TRY_ASSIGN(moe_path, moe_path_from(options.moe_path));
  device.runner = cuda_runner({options.batch_invariant, moe_path});
  WARPROLL_TRY_ASSIGN(arenas, make_cuda_arena_device({.device = gpu.index}));
  device.arenas = std::move(arenas);
  char text[160];
  std::snprintf(text, sizeof text, "cuda %d: %s, %.1f GiB", gpu.index, gpu.name.c_str(),
                static_cast<double>(gpu.total_bytes) / (1 << 30));
  device.description = text;
  return std::optional<ModelDevice>(std::move(device));
}
#else
Result<std::optional<ModelDevice>> open_gpu(const ModelDeviceOptions& options) {
  if (options.device == "auto") return std::optional<ModelDevice>();
  return failed_precondition("device cuda: this build has no CUDA");
}
#endif

}  // namespace

Result<ModelDevice> open_model_device(const ModelDeviceOptions& options) {
  if (options.device != "auto" && options.device != "cpu" && options.device != "cuda") {
    return invalid_argument("device '" + options.device + "', wanted auto, cpu or cuda");
  }
  if (options.device == "cpu") return open_cpu(options);
  WARPROLL_TRY_ASSIGN(gpu, open_gpu(options));
  if (gpu.has_value()) return std::move(*gpu);
  return open_cpu(options);
}

}  // namespace warproll
