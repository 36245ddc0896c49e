// StepInputs: everything a step reads that is not weights or KV, as one block of memory, so that it
// reaches the device in one copy. Where an array lies in the block depends on the step's shape alone,
// so a CUDA graph of that shape finds it again. Thread: one owner; take() and at() any.
// Errors: CudaError, std::invalid_argument = more than the buffer was made for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/pinned_buffer.h"
#include "kernels/cuda/stream.h"
#include "kernels/sampling.h"
#include "rollout/model/forward.h"

namespace warproll {

// What decides which kernels a step consists of, and their grids.
struct StepShape {
  int32_t num_tokens = 0;           // T
  int32_t num_sequences = 0;        // B
  int32_t blocks_per_sequence = 0;  // P
  int32_t num_logits = 0;           // N
  bool decode_only = false;         // every sequence has one new token and wants its logits
  bool given_routes = false;
  bool sampled = false;      // tokens are drawn on the device
  bool fed = false;          // token t is what the step before sampled for its row t
  bool want_routes = false;  // brought to the host by the step itself
  bool want_router_logits = false;
  auto operator<=>(const StepShape&) const = default;
};

struct StepInputs {
  const int32_t* token_ids = nullptr;     // [T]
  const int32_t* positions = nullptr;     // [T]
  const int32_t* slot_mapping = nullptr;  // [T]
  const int32_t* cu_seqlens_q = nullptr;  // [B + 1]
  const int32_t* block_table = nullptr;   // [B, P]
  const int32_t* logits_rows = nullptr;   // [N]
  const int32_t* given_ids = nullptr;     // [L, T, K], or null
  const RowSampling* rows = nullptr;      // [N], or null
};

class StepInputBuffer {
 public:
  // ids_per_token: L * K of the routes.
  StepInputBuffer(int32_t num_moe_layers, int32_t top_k, const StepShape& largest);

  // The inputs of step n in slot n % 2 of page-locked memory, the block table widened to
  // shape.blocks_per_sequence. The step before the last must have ended.
  void pack(const ForwardBatch& batch, const StepShape& shape, std::span<const RowSampling> rows,
            uint64_t step);
  // Of a step that is not a graph: what was packed last.
  void upload(cudaStream_t stream) const;
  // Of a graph, its first: from the slot of the step that runs (kernels/step_exchange.h).
  void take(const StepShape& shape, const uint64_t* step, cudaStream_t stream) const;
  // On the device.
  [[nodiscard]] StepInputs at(const StepShape& shape) const;

 private:
  struct Places;
  [[nodiscard]] Places places(const StepShape& shape) const;
  [[nodiscard]] StepInputs in(std::byte* base, const StepShape& shape) const;

  const int32_t num_moe_layers_, top_k_;
  size_t used_bytes_ = 0;
  DeviceBuffer<std::byte> device_;
  PinnedBuffer<std::byte>
      host_;  // two slots, each as large as device_: the other may be on its way
  const std::byte* packed_ = nullptr;
};

}  // namespace warproll
