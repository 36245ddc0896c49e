// One step of DeviceForward: the model's ops in order, put on a stream over the workspace's buffers.
// Private to rollout/model/cuda: the layer's order in forward_step.cpp, its experts in
// forward_step_moe.cpp. Thread: its maker's.
#pragma once

#include "kernels/moe/warp_decode.h"
#include "kernels/step/residual_norm.h"
#include "rollout/model/cuda/forward_workspace.h"

namespace warproll {

class DeviceForward::Step {
 public:
  Step(const DeviceForward& owner, const StepShape& shape, const StepInputs& inputs,
       const DeviceModelWeights& weights, const DeviceKvCache& kv, cudaStream_t stream)
      : config_(owner.config_),
        options_(owner.options_),
        space_(*owner.space_),
        shape_(shape),
        inputs_(inputs),
        weights_(weights),
        kv_(kv),
        stream_(stream),
        hidden_(space_.hidden),
        hidden_next_(space_.hidden_next) {}

  void run();

 private:
  // What the next norm adds to the residual stream: a BF16 tensor, a MoE layer's partial sums, nothing.
  struct Addend {
    const uint16_t* tensor = nullptr;
    MoePartials moe = {};
  };

  void mark(const char* op) const {
    if (options_.timer != nullptr) options_.timer->mark(op, stream_);
  }

  void add_and_norm(const Addend& addend, const std::byte* weight) const;
  // The same as a prologue of the kernel that reads the norm.
  ResidualNorm take_norm(const uint16_t* addend, const std::byte* weight);
  // The norm of hidden + addend, times a matrix.
  void norm_linear(const Addend& addend, const std::byte* norm, const TileMatrix& weight,
                   uint16_t* y, float* y_f32, const char* op);
  // x as tiles where the norm before wrote them, else as rows. Where bits may depend on the step's size
  // the grouped product takes what it is faster at (docs/benchmarks/step.md).
  void linear(const TileActivations& tiles, const uint16_t* x, const TileMatrix& weight,
              int32_t rows, uint16_t* y, float* y_f32) const;
  void attention(const DeviceLayerWeights& w, int32_t layer, const Addend& addend);
  [[nodiscard]] Addend moe(const DeviceLayerWeights& w, int32_t moe_layer);
  // A dense MLP is one expert of weight 1.
  [[nodiscard]] Addend dense(const DeviceLayerWeights& w);
  [[nodiscard]] bool grouped(TileFormat format) const;
  [[nodiscard]] Addend experts(const DeviceLayerWeights& w, const int32_t* topk_ids,
                               const float* topk_weights, const ExpertLists& lists,
                               int32_t top_k) const;
  // Only the asked rows see the head; of a decode step, all.
  void logits(const Addend& addend);

  const ModelConfig& config_;
  const DeviceForwardOptions& options_;
  const Workspace& space_;
  const StepShape& shape_;
  const StepInputs& inputs_;
  const DeviceModelWeights& weights_;
  const DeviceKvCache& kv_;
  const cudaStream_t stream_;
  uint16_t *hidden_, *hidden_next_;  // the residual stream is the first
};

}  // namespace warproll
