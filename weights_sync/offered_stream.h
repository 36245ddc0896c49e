// OfferedStream: a checkpoint as the byte stream of its manifest, out of the mapped files.
// Thread: any. Lifetime: keeps the checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "protocol/status.h"
#include "weights_sync/broadcast_transport.h"

namespace warproll {

class OfferedStream {
 public:
  // kInvalidArgument: a tensor of the manifest is not in the checkpoint.
  static Result<std::shared_ptr<const OfferedStream>> make(const OfferedCheckpoint& offered);

  [[nodiscard]] const Manifest& manifest() const { return *offered_.manifest; }
  // [offset, offset + length): out of the mapping when it lies inside one tensor, else put together
  // in `scratch`.
  [[nodiscard]] std::span<const std::byte> range(uint64_t offset, uint64_t length,
                                                 std::vector<std::byte>& scratch) const;
  // [offset, offset + to.size()), zeros between tensors.
  void copy(uint64_t offset, std::span<std::byte> to) const;

 private:
  [[nodiscard]] size_t entry_at(uint64_t offset) const;  // the last that begins at or before it

  OfferedCheckpoint offered_;
  std::vector<std::span<const std::byte>> bytes_;  // [entries]
  std::vector<uint64_t> offsets_;                  // [entries] in the stream
};

}  // namespace warproll
