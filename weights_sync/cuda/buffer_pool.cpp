#include "weights_sync/cuda/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <string>

namespace warproll {
namespace {

constexpr uint64_t kLeastBytes = 64 << 10;
constexpr uint64_t kLargeBytes = 64 << 20;  // from here on exactly what is asked for

uint64_t rounded(uint64_t bytes) {
  return bytes >= kLargeBytes ? bytes : std::bit_ceil(std::max(bytes, kLeastBytes));
}

}  // namespace

Result<DeviceBuffer<std::byte>> try_allocate(uint64_t bytes, const char* what) {
  try {
    return DeviceBuffer<std::byte>(bytes);
  } catch (const CudaError& error) {
    if (error.code() != cudaErrorMemoryAllocation) throw;
    cudaGetLastError();  // it is told here
    return resource_exhausted(std::string(what) + " of " + std::to_string(bytes) +
                              " bytes: the device is out of memory");
  }
}

Result<BufferPool::Buffer*> BufferPool::take(uint64_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  Buffer* fits = nullptr;  // the smallest that does, of those that nobody reads any more if any
  bool fits_idle = false;
  for (Buffer& buffer : buffers_) {
    if (buffer.taken || buffer.memory.size() < bytes) continue;
    const bool idle = buffer.last_use.ended();
    const bool better =
        fits == nullptr || (idle != fits_idle ? idle : buffer.memory.size() < fits->memory.size());
    if (!better) continue;
    fits = &buffer;
    fits_idle = idle;
  }
  const uint64_t size = rounded(bytes);
  if (fits == nullptr || (!fits_idle && allocated_bytes_ + size <= budget_bytes_)) {
    WARPROLL_TRY_ASSIGN(memory, try_allocate(size, "buffer for a tensor"));
    buffers_.push_back({std::move(memory), {}, true});
    allocated_bytes_ += size;
    return &buffers_.back();
  }
  fits->taken = true;
  fits->last_use.hold(stream);
  return fits;
}

void BufferPool::give(Buffer* buffer, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  buffer->last_use.record(stream);
  buffer->taken = false;
}

}  // namespace warproll
