// BufferPool: device buffers for tensors on their way, used again and again, in sizes of powers of two
// below 64 MiB. Above `budget_bytes` a buffer is allocated only when none of those there is large
// enough; below it also when those of its size are still read. All are freed with the pool, which
// outlives the work that uses them.
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <mutex>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/event.h"
#include "protocol/status.h"

namespace warproll {

class BufferPool {
 public:
  struct Buffer {
    DeviceBuffer<std::byte> memory;
    CudaEvent last_use;
  };

  explicit BufferPool(uint64_t budget_bytes) : budget_bytes_(budget_bytes) {}
  // At least `bytes`; what is enqueued on `stream` from here on may use it. kResourceExhausted: the
  // device is out of memory.
  Result<Buffer*> take(uint64_t bytes, cudaStream_t stream);
  // What is enqueued on `stream` so far is the last use. Where the GPU has a fault nobody gets it again:
  // destructors call this.
  void give(Buffer* buffer, cudaStream_t stream) noexcept;

 private:
  const uint64_t budget_bytes_;
  std::mutex mutex_;
  std::list<Buffer> buffers_;                     // guarded by mutex_, as the next
  std::map<uint64_t, std::deque<Buffer*>> free_;  // by size; the one given longest ago first
  uint64_t allocated_bytes_ = 0;
};

// A failed allocation as a Status; other faults throw on.
Result<DeviceBuffer<std::byte>> try_allocate(uint64_t bytes, const char* what);

}  // namespace warproll
