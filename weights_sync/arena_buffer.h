// ArenaBuffer: owns the memory of one weight arena. Anonymous private pages: page-aligned (so at
// least kArenaAlignment), zero until written, and a page that was never touched costs nothing.
// Move-only. Thread: the bytes are the users' affair, the object is immutable once made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/status.h"

namespace warproll {

class ArenaBuffer {
 public:
  ArenaBuffer() = default;  // empty
  // kResourceExhausted with the size when the address space is refused. 0 bytes is an empty buffer.
  static Result<ArenaBuffer> allocate(uint64_t capacity_bytes);
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
};

}  // namespace warproll
