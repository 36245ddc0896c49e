// The buffers of DeviceForward: one allocation, made once for its largest step. Private to
// rollout/model/cuda. Thread: its owner's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device_buffer.h"
#include "kernels/moe/expert_lists.h"
#include "kernels/moe/warp_decode.h"
#include "kernels/sampling.h"
#include "rollout/model/cuda/device_forward.h"

namespace warproll {

struct DeviceForward::Workspace {
  Workspace(const ModelConfig& config, const DeviceForwardOptions& options);
  static size_t bytes_of(const ModelConfig& config, const DeviceForwardOptions& options);

  uint16_t* hidden = nullptr;       // BF16 [T, H], the residual stream
  uint16_t* hidden_next = nullptr;  // and where a kernel writes it that reads it in many CTAs
  uint16_t* normed = nullptr;       // BF16 [T, H]
  TileActivations normed_tile;      // [T, H]
  uint16_t* qkv = nullptr;          // BF16 [T, (num_heads + 2 num_kv_heads) * D]
  uint16_t* q = nullptr;            // BF16 [T, num_heads * D]
  uint16_t* attention = nullptr;    // BF16 [T, num_heads * D]
  uint16_t* projected = nullptr;    // BF16 [T, H]: o projection, MoE output
  std::byte* attention_workspace = nullptr;
  float* router_logits = nullptr;  // [T, E], or [L, T, E] when they are captured
  int32_t* topk_ids = nullptr;     // [L, T, K]
  float* topk_weights = nullptr;   // [T, K]
  int32_t* dense_ids = nullptr;    // [T] zeros: a dense MLP is one expert ..
  float* dense_weights = nullptr;  // [T] .. of weight 1
  ExpertLists lists, dense_lists;
  uint16_t* expert_h = nullptr;      // F16 [T * K, 2, I]
  float* expert_partials = nullptr;  // [T * K, H]
  std::byte* expert_centric = nullptr;
  size_t expert_centric_bytes = 0;
  std::byte* linear = nullptr;
  size_t linear_bytes = 0;
  uint16_t* logits_hidden = nullptr;  // BF16 [N, H]
  float* logits = nullptr;            // [N, V]
  SampledToken* sampled = nullptr;    // [N]
  float* cos = nullptr;               // [max_positions, D / 2]
  float* sin = nullptr;
  size_t bytes = 0;

 private:
  Workspace() = default;
  void place(const ModelConfig& config, const DeviceForwardOptions& options, std::byte* base);
  DeviceBuffer<std::byte> memory_;
};

}  // namespace warproll
