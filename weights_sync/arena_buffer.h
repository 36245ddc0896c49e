// ArenaBuffer: owns the memory of one weight arena. In host memory anonymous private pages:
// page-aligned (so at least kArenaAlignment), zero until written, and a page that was never touched
// costs nothing. Of an ArenaDevice its memory, which it holds on to.
// Move-only. Thread: the bytes are the users' affair, the object is immutable once made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/status.h"
#include "weights_sync/arena_device.h"

namespace warproll {

class ArenaBuffer {
 public:
  ArenaBuffer() = default;  // empty
  // kResourceExhausted with the size when there is no room. 0 bytes is an empty buffer.
  // device null = host memory.
  static Result<ArenaBuffer> allocate(uint64_t capacity_bytes, ArenaDevicePtr device = nullptr);
  ArenaBuffer(ArenaBuffer&& other) noexcept;
  ArenaBuffer& operator=(ArenaBuffer&& other) noexcept;
  ~ArenaBuffer();

  [[nodiscard]] std::byte* data() { return data_; }
  [[nodiscard]] const std::byte* data() const { return data_; }
  [[nodiscard]] uint64_t capacity_bytes() const { return capacity_bytes_; }
  [[nodiscard]] std::span<std::byte> span() { return {data_, capacity_bytes_}; }
  [[nodiscard]] std::span<const std::byte> span() const { return {data_, capacity_bytes_}; }

 private:
  std::byte* data_ = nullptr;
  uint64_t capacity_bytes_ = 0;
  ArenaDevicePtr device_;
};

}  // namespace warproll
