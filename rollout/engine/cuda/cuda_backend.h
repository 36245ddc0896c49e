// The engine's backend on a GPU: DeviceForward with a paged KV cache of its own, decode steps as CUDA
// graphs, sampling on the device. Only token ids, log-probabilities and asked-for routes come back.
// Activations are BF16. Weight sets must lie on the device (WeightSet::device).
// Thread: as ModelBackend. Errors: CudaError (out of device memory among them), std::invalid_argument.
#pragma once

#include <cstddef>
#include <string>

#include "rollout/engine/backend.h"
#include "rollout/model/cuda/device_forward.h"

namespace warproll {

struct CudaBackendOptions {
  bool batch_invariant = true;
  MoePath moe_path = MoePath::kAuto;
  bool use_graphs = true;
  bool capture_router_logits = false;
  bool time_ops = false;  // ModelBackend::take_op_times; steps are slower and use no graphs
};

// Lives as long as the backend's copies. Uses the calling thread's current device, and sets it on
// the threads that run it.
ModelBackend make_cuda_backend(const ModelConfig& config, const BackendSizes& sizes,
                               const CudaBackendOptions& options);
ModelRunner cuda_runner(const CudaBackendOptions& options);

// Device memory such a backend takes beside the KV cache, in bytes, without taking it.
size_t cuda_workspace_bytes(const ModelConfig& config, const BackendSizes& sizes,
                            const CudaBackendOptions& options);

}  // namespace warproll
