#include "rollout/model/cuda/device_kv_cache.h"

namespace warproll {

DeviceKvCache::DeviceKvCache(const ModelConfig& config, int32_t num_blocks, int32_t block_tokens)
    : num_layers_(config.num_layers),
      num_blocks_(num_blocks),
      block_tokens_(block_tokens),
      block_values_(static_cast<size_t>(block_tokens) * static_cast<size_t>(config.num_kv_heads) *
                    static_cast<size_t>(config.head_dim)),
      plane_values_(block_values_ * static_cast<size_t>(num_blocks)),
      storage_(plane_values_ * 2 * static_cast<size_t>(config.num_layers)) {
  WARPROLL_CUDA_CHECK(cudaMemset(storage_.data(), 0, storage_.size() * sizeof(uint16_t)));
}

void DeviceKvCache::copy_block(int32_t from, int32_t to, cudaStream_t stream) const {
  const size_t pitch = plane_values_ * sizeof(uint16_t);
  WARPROLL_CUDA_CHECK(cudaMemcpy2DAsync(
      storage_.data() + static_cast<size_t>(to) * block_values_, pitch,
      storage_.data() + static_cast<size_t>(from) * block_values_, pitch,
      block_values_ * sizeof(uint16_t), size_t{2} * static_cast<size_t>(num_layers_),
      cudaMemcpyDeviceToDevice, stream));
}

}  // namespace warproll
