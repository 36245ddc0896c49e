#include "worker/node/model_device.h"

#include <cstdio>
#include <optional>

#include "worker/node/serving_model.h"
#ifdef WARPROLL_HAS_CUDA
#include "kernels/cuda/device_info.h"
#include "kernels/cuda/spare_multiprocessors.h"
#include "rollout/engine/cuda/cuda_backend.h"
#include "weights_sync/cuda/cuda_arena_device.h"
#include "weights_sync/cuda/serving_arena.h"
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
  if (text == "literal") return MoePath::kLiteral;
  return invalid_argument("MoE path '" + text +
                          "', wanted auto, warp_decode, expert_centric or literal");
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
  if (options.spare_sms < 0 || options.spare_sms >= gpu.num_multiprocessors) {
    return invalid_argument(std::to_string(options.spare_sms) + " SMs to spare, this GPU has " +
                            std::to_string(gpu.num_multiprocessors));
  }
  spare_multiprocessors(options.spare_sms);
  ModelDevice device;
  WARPROLL_TRY_ASSIGN(moe_path, moe_path_from(options.moe_path));
  device.runner = cuda_runner({.batch_invariant = options.batch_invariant,
                               .moe_path = moe_path,
                               .time_ops = options.time_ops});
  device.gpu_index = gpu.index;
  device.batch_invariant = options.batch_invariant;
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

Status check_step_tokens(const ModelDevice& device, int64_t tokens, std::string_view option) {
  // Of the kernels, and of warp decode, which with batch_invariant all experts take.
  constexpr int64_t kMost = 8192, kMostInvariant = 1024;
  const int64_t most = device.batch_invariant ? kMostInvariant : kMost;
  if (!device.on_gpu() || tokens <= most) return ok_status();
  return invalid_argument(std::string(option) + " is " + std::to_string(tokens) + ", a GPU takes " +
                          std::to_string(most) + " at most" +
                          (device.batch_invariant ? " with batch_invariant" : ""));
}

#ifdef WARPROLL_HAS_CUDA
Status stage_on_host(ModelDevice& device, uint64_t arena_bytes) {
  WARPROLL_TRY_ASSIGN(arenas,
                      make_cuda_arena_device({.device = device.gpu_index, .host_staged = true}));
  device.arenas = std::move(arenas);
  device.serving_arena = std::make_shared<ServingArena>(device.gpu_index, arena_bytes);
  return ok_status();
}

const std::byte* serving_memory(const ModelDevice& device, const StagedWeights& staged) {
  return device.serving_arena ? device.serving_arena->data() : staged.arena.data();
}

void serve_from(const ModelDevice& device, const StagedWeights& staged) {
  if (device.serving_arena) device.serving_arena->upload(staged.arena);
}

uint64_t free_gpu_bytes(const ModelDevice& device) {
  return list_gpus().at(static_cast<size_t>(device.gpu_index)).free_bytes;
}

uint64_t workspace_bytes(const ModelDevice& device, const ModelConfig& config,
                         const BackendSizes& sizes) {
  return cuda_workspace_bytes(config, sizes, {.batch_invariant = device.batch_invariant});
}
#else
Status stage_on_host(ModelDevice&, uint64_t) {
  return failed_precondition("host_staged: this build has no CUDA");
}
const std::byte* serving_memory(const ModelDevice&, const StagedWeights& staged) {
  return staged.arena.data();
}
void serve_from(const ModelDevice&, const StagedWeights&) {}
uint64_t free_gpu_bytes(const ModelDevice&) { return 0; }
uint64_t workspace_bytes(const ModelDevice&, const ModelConfig&, const BackendSizes&) { return 0; }
#endif

}  // namespace warproll
