#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "rollout/model/forward.h"

namespace warproll {

std::string_view to_string(ActivationDtype dtype) {
  switch (dtype) {
    case ActivationDtype::kF32:
      return "f32";
    case ActivationDtype::kBf16:
      return "bf16";
    case ActivationDtype::kF16:
      return "f16";
  }
  throw std::invalid_argument("activation dtype is " + std::to_string(static_cast<int>(dtype)) +
                              ", wanted 0 .. 2");
}

KvCache::KvCache(const ModelConfig& config, int32_t num_blocks, int32_t block_tokens,
                 ActivationDtype dtype)
    : num_layers_(config.num_layers),
      num_blocks_(num_blocks),
      block_tokens_(block_tokens),
      dtype_(dtype) {
  if (num_blocks < 1 || block_tokens < 1 ||
      int64_t{num_blocks} * block_tokens > std::numeric_limits<int32_t>::max()) {
    throw std::invalid_argument("KV cache: num_blocks is " + std::to_string(num_blocks) +
                                " and block_tokens is " + std::to_string(block_tokens) +
                                ", wanted both >= 1 and a product that fits 31 bits");
  }
  layer_stride_ = static_cast<size_t>(num_blocks) * static_cast<size_t>(block_tokens) *
                  static_cast<size_t>(config.num_kv_heads) * static_cast<size_t>(config.head_dim);
  storage_.resize(2 * layer_stride_ * static_cast<size_t>(num_layers_));
}

float* KvCache::k(int32_t layer) {
  return storage_.data() + 2 * static_cast<size_t>(layer) * layer_stride_;
}

float* KvCache::v(int32_t layer) { return k(layer) + layer_stride_; }

void KvCache::copy_block(int32_t from, int32_t to) {
  if (from < 0 || from >= num_blocks_ || to < 0 || to >= num_blocks_) {
    throw std::invalid_argument("KV cache: copy of block " + std::to_string(from) + " to " +
                                std::to_string(to) + ", wanted 0 .. " +
                                std::to_string(num_blocks_ - 1));
  }
  if (from == to) return;
  const size_t block = layer_stride_ / static_cast<size_t>(num_blocks_);
  for (int32_t layer = 0; layer < num_layers_; ++layer) {
    for (float* base : {k(layer), v(layer)}) {
      std::copy_n(base + static_cast<size_t>(from) * block, block,
                  base + static_cast<size_t>(to) * block);
    }
  }
}

}  // namespace warproll
