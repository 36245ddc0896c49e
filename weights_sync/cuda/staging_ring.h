// StagingRing: page-locked buffers through which bytes of the host reach the device: a thread copies
// into one while the device reads from the others.
// Thread: any. Errors: CudaError.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/cuda/event.h"
#include "kernels/cuda/pinned_buffer.h"

namespace warproll {

class StagingRing {
 public:
  StagingRing(int num_slots, uint64_t slot_bytes);
  // Returns when the bytes are read; they are at `to` once the work enqueued on `stream` has ended.
  void copy(std::span<const std::byte> bytes, std::byte* to, cudaStream_t stream);

 private:
  struct Slot {
    PinnedBuffer<std::byte> memory;
    CudaEvent copied;
  };
  Slot* acquire();
  void release(Slot* slot);

  std::vector<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable freed_;
  std::deque<Slot*> free_;  // guarded by mutex_; the one used longest ago first
};

}  // namespace warproll
