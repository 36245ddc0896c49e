// DeviceForward: the whole model on one page, on a GPU. Puts the kernels of one step on a stream: B
// sequences' new tokens through every layer, their K and V into the paged cache, logits of the asked
// rows and, where wanted, the sampled tokens. What forward() (rollout/model/forward.h) is on the CPU,
// with BF16 activations: the same ops, rounded at the same places.
//
// A token's bits depend on its own sequence alone in batch_invariant mode. Otherwise steps of many
// tokens take grouped products whose sums have another order (bits depend on the step's size alone).
// No host synchronisation and no allocation in enqueue(), and shapes alone decide what is launched:
// may be captured into a CUDA graph and replayed on other inputs of that shape.
// Thread: one owner, one stream. Errors: std::invalid_argument (shapes), CudaError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/stream.h"
#include "rollout/model/cuda/device_kv_cache.h"
#include "rollout/model/cuda/device_weights.h"
#include "rollout/model/cuda/op_timer.h"
#include "rollout/model/cuda/step_inputs.h"

namespace warproll {

// kLiteral: the published kernels, for decode steps of weights that have rows; prefill is grouped.
enum class MoePath : uint8_t { kAuto, kWarpDecode, kExpertCentric, kLiteral };

struct DeviceForwardOptions {
  StepShape largest;          // of any step: T, B, P and N
  int32_t block_tokens = 16;  // of the KV cache
  bool batch_invariant = true;
  MoePath moe_path = MoePath::kAuto;
  bool capture_router_logits = false;  // room for those of every layer
  OpTimer* timer = nullptr;            // measures every op; outlives the forward pass
};

// What a step leaves in device memory, until the next one.
struct StepOutputs {
  const float* logits = nullptr;          // [N, V]
  const SampledToken* sampled = nullptr;  // [N], when shape.sampled
  const int32_t* routes = nullptr;        // [L, T, K] expert ids
  const float* router_logits = nullptr;   // [L, T, E], when shape.want_router_logits
};

class DeviceForward {
 public:
  DeviceForward(const ModelConfig& config, const DeviceForwardOptions& options);
  ~DeviceForward();
  DeviceForward(const DeviceForward&) = delete;
  DeviceForward& operator=(const DeviceForward&) = delete;

  void enqueue(const StepShape& shape, const StepInputs& inputs, const DeviceModelWeights& weights,
               const DeviceKvCache& kv, cudaStream_t stream);
  [[nodiscard]] StepOutputs outputs() const;
  // Device memory one made with these takes.
  static size_t workspace_bytes(const ModelConfig& config, const DeviceForwardOptions& options);

 private:
  struct Workspace;
  class Step;
  const ModelConfig config_;
  const DeviceForwardOptions options_;
  std::unique_ptr<Workspace> space_;
};

}  // namespace warproll
