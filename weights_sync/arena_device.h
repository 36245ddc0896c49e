// ArenaDevice: where weight arenas are when they are not in host memory. The seam between the parts
// of weights_sync that know no CUDA and weights_sync/cuda; a null pointer stands for host memory.
// Lifetime: outlives its memory and its fillers (ArenaBuffer holds it). Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/arena.h"
#include "protocol/records.h"
#include "protocol/status.h"
#include "weights_sync/manifest.h"
#include "weights_sync/weight_filler.h"

namespace warproll {

// Device memory that filling arenas on a GPU keeps for its lists of work and for digests under way.
inline constexpr uint64_t kFillListBytes = uint64_t{72} << 20;
// A bucket that comes into device memory, unless the trainer says otherwise. Each costs a GPU that decodes some
// 30 us (docs/decisions.md 96).
inline constexpr uint64_t kDeviceBucketBytes = uint64_t{256} << 20;
// What an update has in device memory while it comes: those lists, a transport's two buckets, and the buffers of
// tensors on their way, of which the largest has `largest_tensor_bytes`.
constexpr uint64_t device_receive_bytes(uint64_t largest_tensor_bytes) {
  constexpr uint64_t kBuffers = uint64_t{256} << 20;  // CudaArenaOptions::buffer_bytes
  return (2 * largest_tensor_bytes > kBuffers ? 2 * largest_tensor_bytes : kBuffers) +
         kFillListBytes + 2 * kDeviceBucketBytes;
}

class ArenaDevice {
 public:
  virtual ~ArenaDevice() = default;
  // Other GPUs can write into its memory; false: it is the host's, page-locked (host_staged).
  [[nodiscard]] virtual bool in_device_memory() const = 0;
  // kArenaAlignment-aligned. kResourceExhausted with the size when there is no room; bytes > 0.
  virtual Result<std::byte*> allocate(uint64_t bytes) = 0;
  virtual void release(std::byte* memory) noexcept = 0;
  // Refuses what ArenaFiller::create refuses but tiles. Zeroes what no tensor writes of
  // [0, layout.total_bytes) (arena_gaps in layout_check.h), each time: another layout may have left
  // bytes there. So every byte of the arena is defined once it is filled, and by its version alone. All
  // arguments must outlive the filler.
  virtual Result<std::unique_ptr<WeightFiller>> make_filler(const ArenaLayout& layout,
                                                            std::span<std::byte> arena,
                                                            const Manifest* manifest) = 0;
  // tensor_digest (digest.h) of bytes of the device. Blocking.
  virtual Digest digest(std::span<const std::byte> bytes) = 0;
};
using ArenaDevicePtr = std::shared_ptr<ArenaDevice>;

}  // namespace warproll
