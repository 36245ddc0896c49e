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
  const uint64_t size = rounded(bytes);
  const std::lock_guard lock(mutex_);
  auto fits = free_.lower_bound(size);
  while (fits != free_.end() && fits->second.empty()) ++fits;
  const bool close = fits != free_.end() && fits->first / 2 <= size;
  const bool idle = close && fits->second.front()->last_use.ended();
  if (fits == free_.end() || (!idle && allocated_bytes_ + size <= budget_bytes_)) {
    WARPROLL_TRY_ASSIGN(memory, try_allocate(size, "buffer for a tensor"));
    buffers_.push_back({std::move(memory), {}});
    allocated_bytes_ += size;
    return &buffers_.back();
  }
  Buffer* const buffer = fits->second.front();
  fits->second.pop_front();
  buffer->last_use.hold(stream);
  return buffer;
}

void BufferPool::give(Buffer* buffer, cudaStream_t stream) noexcept {
  const std::lock_guard lock(mutex_);
  if (!buffer->last_use.try_record(stream)) return;
  free_[buffer->memory.size()].push_back(buffer);
}

}  // namespace warproll
