// BlockManager: which KV blocks are free and how many owners each of the others has. A block with
// more than one owner is read-only; who wants to write it takes a copy (Scheduler).
// Misuse (releasing a free block) is a broken invariant and throws.
// Thread: the engine's only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace warproll {

class BlockManager {
 public:
  explicit BlockManager(int32_t num_blocks);
  std::optional<int32_t> allocate();  // with one owner; empty = none is free
  void add_owner(int32_t block);
  void release(int32_t block);  // one owner less; free when none is left
  [[nodiscard]] int32_t num_owners(int32_t block) const;
  [[nodiscard]] int32_t num_blocks() const { return static_cast<int32_t>(owners_.size()); }
  [[nodiscard]] int32_t num_free() const { return static_cast<int32_t>(free_.size()); }

 private:
  std::vector<int32_t> owners_;  // [num_blocks]
  std::vector<int32_t> free_;    // a stack
};

}  // namespace warproll
