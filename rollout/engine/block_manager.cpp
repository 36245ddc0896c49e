#include "rollout/engine/block_manager.h"

#include <string>

#include "protocol/status.h"

namespace warproll {

BlockManager::BlockManager(int32_t num_blocks) : owners_(static_cast<size_t>(num_blocks), 0) {
  free_.reserve(owners_.size());
  for (int32_t block = num_blocks; block-- > 0;) free_.push_back(block);
}

std::optional<int32_t> BlockManager::allocate() {
  if (free_.empty()) return std::nullopt;
  const int32_t block = free_.back();
  free_.pop_back();
  owners_[static_cast<size_t>(block)] = 1;
  return block;
}

void BlockManager::add_owner(int32_t block) {
  WARPROLL_CHECK(num_owners(block) > 0, "block " + std::to_string(block) + " is free");
  ++owners_[static_cast<size_t>(block)];
}

void BlockManager::release(int32_t block) {
  WARPROLL_CHECK(num_owners(block) > 0, "block " + std::to_string(block) + " is free");
  if (--owners_[static_cast<size_t>(block)] == 0) free_.push_back(block);
}

int32_t BlockManager::num_owners(int32_t block) const {
  return owners_.at(static_cast<size_t>(block));
}

}  // namespace warproll
