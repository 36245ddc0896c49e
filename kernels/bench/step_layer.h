// StepLayers: weights and buffers of some layers of Qwen3-30B-A3B's shape with random contents, and
// the ops of a decode step over them, in the order they have in a step. For benches. Thread: one.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/bench/random_experts.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/moe/expert_lists.h"
#include "kernels/moe/warp_decode.h"
#include "kernels/step/qkv_finish.h"
#include "kernels/step/residual_norm.h"
#include "kernels/step/stream_linear.h"

namespace warproll {

class StepLayers {
 public:
  static constexpr int32_t kHidden = 2048, kHeads = 32, kKvHeads = 4, kHeadDim = 128;
  static constexpr int32_t kQkvRows = (kHeads + 2 * kKvHeads) * kHeadDim;
  static constexpr int32_t kORows = kHidden, kOCols = kHeads * kHeadDim;
  static constexpr int32_t kVocab = 151936;
  static constexpr ExpertShape kExperts = {2048, 768, 128, 8};
  static constexpr int32_t kBlockTokens = 16;

  // A matrix as tiles of one expert.
  static std::unique_ptr<RandomExperts> matrix(int32_t rows, int32_t cols, WeightFormat format,
                                               uint64_t seed);

  StepLayers(int num_layers, WeightFormat format, int32_t max_batch, int32_t context);
  // cluster: QKV and O by cluster_linear where it is faster.
  void set_batch(int32_t tokens, bool cluster = false);
  // The same, but the first layer adds a tensor. Then a chain leaves the same bits, if refill() comes
  // before it.
  void restart(int32_t tokens);
  // The residual stream, and what is added first, are as they were made. Waits for the device.
  void refill();
  // The ops of a layer, and all layers, in order.
  struct Op {
    const char* name;
    void (StepLayers::*run)(size_t layer, cudaStream_t s) const;
  };
  static std::span<const Op> ops();
  void chain(cudaStream_t s) const;
  // Of the layers enqueued last: hidden, qkv, attention, o; the router's logits. Waits for the device.
  struct State {
    std::vector<uint16_t> hidden, qkv, attention, o;
    std::vector<float> logits;
    bool operator==(const State&) const = default;
  };
  [[nodiscard]] State state() const;

  // Of layer i. input_norm is nothing where qkv norms, qkv_finish where attention does it.
  void input_norm(size_t i, cudaStream_t s) const;
  void qkv(size_t i, cudaStream_t s) const;
  void qkv_finish(size_t i, cudaStream_t s) const;
  void attention(size_t i, cudaStream_t s) const;
  void o(size_t i, cudaStream_t s) const;
  void post_norm(size_t i, cudaStream_t s) const;
  void route(size_t i, cudaStream_t s) const;
  void experts(size_t i, cudaStream_t s) const;

  // Bytes a layer must read, with the experts that `route` chose last, averaged over layers.
  [[nodiscard]] double bytes_of_layer() const;
  [[nodiscard]] double kv_bytes() const { return 4.0 * tokens_ * context_ * kKvHeads * kHeadDim; }
  [[nodiscard]] static double router_bytes() { return 2.0 * kExperts.num_experts * kHidden; }
  [[nodiscard]] size_t size() const { return qkv_.size(); }
  [[nodiscard]] const RandomExperts& qkv_weight(size_t i) const { return *qkv_[i]; }
  [[nodiscard]] const RandomExperts& o_weight(size_t i) const { return *o_[i]; }

 private:
  [[nodiscard]] bool qkv_norms() const;
  [[nodiscard]] bool attention_finishes() const;
  [[nodiscard]] QkvFinishParams finish_params(size_t i) const;
  ResidualNorm take_norm(const uint16_t* addend) const;
  void linear(StreamLinearParams p, cudaStream_t s) const;

  std::vector<std::unique_ptr<RandomExperts>> qkv_, o_, experts_;
  std::vector<DeviceBuffer<std::byte>> lists_memory_;
  std::vector<ExpertLists> lists_;
  DeviceBuffer<uint16_t> router_weights_, norm_weights_, caches_;
  DeviceBuffer<uint16_t> hidden_, hidden_next_, normed_, tile_, qkv_out_, q_, attention_, o_out_,
      h_, y_;
  DeviceBuffer<float> scales_, logits_, topk_weights_, partials_, rope_;
  DeviceBuffer<int32_t> topk_ids_, positions_, slots_, cu_seqlens_, block_table_;
  DeviceBuffer<std::byte> attention_workspace_;
  int32_t max_batch_, context_, tokens_ = 0;
  mutable MoePartials left_;      // by the experts enqueued last
  mutable bool swapped_ = false;  // the residual stream is hidden_next_
  int32_t blocks_of_sequence_;
  bool cluster_ = false;
};

}  // namespace warproll
