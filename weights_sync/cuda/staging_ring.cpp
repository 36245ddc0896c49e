#include "weights_sync/cuda/staging_ring.h"

#include <algorithm>
#include <cstring>

namespace warproll {

StagingRing::StagingRing(int num_slots, uint64_t slot_bytes)
    : slots_(static_cast<size_t>(num_slots)) {
  for (Slot& slot : slots_) {
    slot.memory = PinnedBuffer<std::byte>(slot_bytes);
    free_.push_back(&slot);
  }
}

StagingRing::Slot* StagingRing::acquire() {
  std::unique_lock lock(mutex_);
  freed_.wait(lock, [&] { return !free_.empty(); });
  Slot* slot = free_.front();
  free_.pop_front();
  return slot;
}

void StagingRing::release(Slot* slot) {
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(slot);
  }
  freed_.notify_one();
}

void StagingRing::copy(std::span<const std::byte> bytes, std::byte* to, cudaStream_t stream) {
  while (!bytes.empty()) {
    Slot* slot = acquire();
    const size_t size = std::min(bytes.size(), slot->memory.size());
    try {
      slot->copied.synchronize();
      std::memcpy(slot->memory.data(), bytes.data(), size);
      WARPROLL_CUDA_CHECK(
          cudaMemcpyAsync(to, slot->memory.data(), size, cudaMemcpyHostToDevice, stream));
      slot->copied.record(stream);
    } catch (...) {
      release(slot);
      throw;
    }
    release(slot);
    bytes = bytes.subspan(size);
    to += size;
  }
}

}  // namespace warproll
