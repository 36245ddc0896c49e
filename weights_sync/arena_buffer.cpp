#include "weights_sync/arena_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace warproll {

Result<ArenaBuffer> ArenaBuffer::allocate(uint64_t capacity_bytes, ArenaDevicePtr device) {
  ArenaBuffer buffer;
  if (capacity_bytes == 0) return buffer;
  if (device) {
    WARPROLL_TRY_ASSIGN(on_device, device->allocate(capacity_bytes));
    buffer.data_ = on_device;
    buffer.capacity_bytes_ = capacity_bytes;
    buffer.device_ = std::move(device);
    return buffer;
  }
  // NORESERVE: the standby arena is as large as the serving one and mostly idle.
  void* memory = ::mmap(nullptr, capacity_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return resource_exhausted("weight arena of " + std::to_string(capacity_bytes) +
                              " bytes: " + std::strerror(errno));
  }
  buffer.data_ = static_cast<std::byte*>(memory);
  buffer.capacity_bytes_ = capacity_bytes;
  return buffer;
}

ArenaBuffer::ArenaBuffer(ArenaBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      capacity_bytes_(std::exchange(other.capacity_bytes_, 0)),
      device_(std::move(other.device_)) {}

ArenaBuffer& ArenaBuffer::operator=(ArenaBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(capacity_bytes_, other.capacity_bytes_);
  std::swap(device_, other.device_);
  return *this;
}

ArenaBuffer::~ArenaBuffer() {
  if (data_ == nullptr) return;
  if (device_) {
    device_->release(data_);
  } else {
    ::munmap(data_, capacity_bytes_);
  }
}

}  // namespace warproll
