// DeviceKvCache: the paged KV cache in device memory, BF16. Slot s = block * block_tokens + i, as
// KvCache (rollout/model/forward.h). Zeroed when made, so that every value in it is finite.
// Thread: one owner. Errors: CudaError, also when the device is out of memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/stream.h"
#include "rollout/model/model_config.h"

namespace warproll {

class DeviceKvCache {
 public:
  DeviceKvCache(const ModelConfig& config, int32_t num_blocks, int32_t block_tokens);

  [[nodiscard]] int32_t num_blocks() const { return num_blocks_; }
  [[nodiscard]] int32_t block_tokens() const { return block_tokens_; }
  [[nodiscard]] int64_t num_slots() const { return int64_t{num_blocks_} * block_tokens_; }
  // K (or V) of one layer: BF16 [num_slots, num_kv_heads, head_dim].
  [[nodiscard]] uint16_t* k(int32_t layer) const { return plane(2 * layer); }
  [[nodiscard]] uint16_t* v(int32_t layer) const { return plane(2 * layer + 1); }
  // All layers; for copy on write. In the order of the stream.
  void copy_block(int32_t from, int32_t to, cudaStream_t stream) const;

 private:
  [[nodiscard]] uint16_t* plane(int32_t index) const {
    return storage_.data() + static_cast<size_t>(index) * plane_values_;
  }

  int32_t num_layers_, num_blocks_, block_tokens_;
  size_t block_values_;  // of a block in one plane
  size_t plane_values_;  // K or V of one layer
  DeviceBuffer<uint16_t> storage_;
};

}  // namespace warproll
