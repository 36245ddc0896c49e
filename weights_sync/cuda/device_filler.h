// DeviceFiller: the WeightFiller of a CudaArenaDevice (cuda_arena_device.h says how it works).
// Internal to weights_sync/cuda. Lifetime: what DeviceFillerParts points to outlives it; destroying it
// waits for its work. Thread: as WeightFiller.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/cuda/stream_owner.h"
#include "weights_sync/cuda/buffer_pool.h"
#include "weights_sync/cuda/device_digests.h"
#include "weights_sync/cuda/fill_batch.h"
#include "weights_sync/cuda/staging_ring.h"
#include "weights_sync/cuda/tile_staging.h"
#include "weights_sync/fill_ledger.h"
#include "weights_sync/weight_filler.h"

namespace warproll {

struct DeviceFillerParts {
  int device = 0;
  std::span<const CudaStream> streams;
  BufferPool* pool = nullptr;
  ItemSlots* items = nullptr;
  StagingRing* ring = nullptr;
  TileSlots* tile_slots = nullptr;  // of an arena in host memory, or null
  const ArenaLayout* layout = nullptr;
  std::span<std::byte> arena;
  const Manifest* manifest = nullptr;  // or null
};

class DeviceFiller final : public WeightFiller {
 public:
  static Result<std::unique_ptr<WeightFiller>> create(const DeviceFillerParts& parts);
  DeviceFiller(const DeviceFillerParts& parts, FillPlan plan);
  ~DeviceFiller() override;
  Status start();  // once, before all else

  Status put(std::string_view tensor_name, std::span<const std::byte> bytes) override;
  Status put_part(std::string_view tensor_name, uint64_t offset_bytes,
                  std::span<const std::byte> bytes) override;
  Status put_device(std::span<const DevicePart> parts, void* stream) override;
  Result<FilledArena> finish() override;

 private:
  // A tensor on its way. Of the thread that has claimed it.
  struct Arrival {
    cudaStream_t stream = nullptr;         // all of its work is on it
    std::byte* place = nullptr;            // its bytes: in the arena, or in
    BufferPool::Buffer* buffer = nullptr;  // a buffer
    size_t digest = 0;                     // in digests_; quantised: elements and scales next
  };

  // What a launch is to do, and the buffers that it then lets go of.
  struct Work {
    FillBatch batch;
    std::vector<BufferPool::Buffer*> buffers;
    std::vector<size_t> pieces;             // that its packing adds to, for staging_
    BufferPool::Buffer* scratch = nullptr;  // one of them, for quantised tensors
    uint64_t scratch_used = 0;              // of that one
    uint64_t scratch_bytes = 0;             // that a new one has at least
    uint64_t total_scratch_bytes = 0;
  };

  Status open(size_t index, cudaStream_t stream);
  Status add_host_part(size_t index, uint64_t offset, std::span<const std::byte> bytes,
                       bool& complete);
  Status add_device_part(size_t index, const DevicePart& part, Work& work, bool& complete);
  Status take_in(size_t index, Work& work);
  Status process(size_t index, const std::byte* data, Work& work);
  Status quantise(size_t index, const std::byte* data, Work& work);
  Result<std::byte*> scratch(uint64_t bytes, Work& work, cudaStream_t stream);
  void pack(size_t index, const std::byte* elements, const std::byte* scales, Work& work);
  void pack_pieces(size_t index, const WeightView& rows, Work& work);
  void launch(Work& work, cudaStream_t stream);
  void launch_batch(Work& work, cudaStream_t stream);  // keeps what the batch read
  // Rows whose bytes gather at their place in the arena.
  [[nodiscard]] bool gathers_in_arena(const PlannedTensor& tensor) const;
  Status judge(size_t index, uint64_t not_finite_key);
  void select_device() const;
  cudaStream_t next_stream();

  const DeviceFillerParts parts_;
  FillLedger ledger_;
  std::vector<Arrival> arrivals_;  // [tensors]
  std::optional<DeviceDigests> digests_;
  std::optional<TileStaging> staging_;     // with tile_slots
  BufferPool::Buffer* results_ = nullptr;  // keys, then the digests' memory
  uint64_t* not_finite_ = nullptr;         // [tensors] keys of the searches
  std::atomic<uint64_t> stream_index_{0};
};

}  // namespace warproll
