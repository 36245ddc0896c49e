#include "weights_sync/cuda/cuda_arena_device.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "weights_sync/cuda/buffer_pool.h"
#include "weights_sync/cuda/device_filler.h"
#include "weights_sync/cuda/fill_batch.h"
#include "weights_sync/cuda/tile_staging.h"
#include "weights_sync/digest.h"

namespace warproll {
namespace {

// Of an arena in host memory, digested on the device a piece at a time.
constexpr uint64_t kDigestPieceBytes = 32 * kDigestChunkBytes;

class CudaArenaDevice final : public ArenaDevice {
 public:
  explicit CudaArenaDevice(const CudaArenaOptions& options)
      : options_(options), pool_(options.buffer_bytes) {
    select();
    for (int i = 0; i < options.num_streams; ++i) streams_.emplace_back(CudaStream::Priority::kLow);
    load_take_in_kernels();
    load_pack_kernels();
  }

  [[nodiscard]] bool in_device_memory() const override { return !options_.host_staged; }

  Result<std::byte*> allocate(uint64_t bytes) override {
    select();
    void* memory = nullptr;
    const cudaError_t code = options_.host_staged
                                 ? cudaHostAlloc(&memory, bytes, cudaHostAllocPortable)
                                 : cudaMalloc(&memory, bytes);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // it is told here
      return resource_exhausted("weight arena of " + std::to_string(bytes) + " bytes: " +
                                (options_.host_staged
                                     ? "page-locked memory of the host"
                                     : "memory of GPU " + std::to_string(options_.device)) +
                                " is exhausted");
    }
    WARPROLL_CUDA_CHECK(code);
    return static_cast<std::byte*>(memory);
  }

  void release(std::byte* memory) noexcept override {
    cudaSetDevice(options_.device);
    options_.host_staged ? cudaFreeHost(memory) : cudaFree(memory);
  }

  Result<std::unique_ptr<WeightFiller>> make_filler(const ArenaLayout& layout,
                                                    std::span<std::byte> arena,
                                                    const Manifest* manifest) override {
    select();
    WARPROLL_TRY(make_ring());
    return DeviceFiller::create({.device = options_.device,
                                 .streams = streams_,
                                 .pool = &pool_,
                                 .items = items_.get(),
                                 .ring = ring_.get(),
                                 .tile_slots = tile_slots_.get(),
                                 .layout = &layout,
                                 .arena = arena,
                                 .manifest = manifest});
  }

  Digest digest(std::span<const std::byte> bytes) override {
    select();
    const uint64_t size = bytes.size();
    const CudaStream& stream = streams_.front();
    DeviceDigests digests({&size, 1});
    const Result<BufferPool::Buffer*> memory = pool_.take(digests.device_bytes(), stream.get());
    WARPROLL_CHECK(memory.ok(), memory.status().message());
    digests.use((*memory)->memory.data());
    if (options_.host_staged) {
      enqueue_from_host(digests, bytes, stream.get());
    } else {
      digests.enqueue(0, bytes.data(), stream.get());
    }
    stream.synchronize();
    digests.fetch();
    pool_.give(*memory, stream.get());
    return digests.get(0);
  }

 private:
  void select() const { WARPROLL_CUDA_CHECK(cudaSetDevice(options_.device)); }

  // Kernels that read them over PCIe would keep their SMs.
  void enqueue_from_host(const DeviceDigests& digests, std::span<const std::byte> bytes,
                         cudaStream_t stream) {
    if (bytes.empty()) return;
    const Result<BufferPool::Buffer*> piece =
        pool_.take(std::min<uint64_t>(bytes.size(), kDigestPieceBytes), stream);
    WARPROLL_CHECK(piece.ok(), piece.status().message());
    std::byte* const here = (*piece)->memory.data();
    for (uint64_t at = 0; at < bytes.size(); at += kDigestPieceBytes) {
      const uint64_t size = std::min(bytes.size() - at, kDigestPieceBytes);
      WARPROLL_CUDA_CHECK(
          cudaMemcpyAsync(here, bytes.data() + at, size, cudaMemcpyHostToDevice, stream));
      digests.enqueue_part(0, at, here, size, stream);
    }
    pool_.give(*piece, stream);
  }

  Status make_ring() {
    const std::lock_guard lock(mutex_);
    if (ring_) return ok_status();
    try {
      items_ = std::make_unique<ItemSlots>();
      if (options_.host_staged) tile_slots_ = std::make_unique<TileSlots>();
      ring_ = std::make_unique<StagingRing>(options_.pinned_slots, options_.pinned_slot_bytes);
    } catch (const CudaError& error) {
      if (error.code() != cudaErrorMemoryAllocation) throw;
      cudaGetLastError();  // it is told here
      return resource_exhausted(std::to_string(options_.pinned_slots) + " page-locked buffers of " +
                                std::to_string(options_.pinned_slot_bytes) +
                                " bytes, or the device's slots for tiles: no memory for them");
    }
    return ok_status();
  }

  const CudaArenaOptions options_;
  std::vector<CudaStream> streams_;
  BufferPool pool_;
  std::mutex mutex_;
  std::unique_ptr<ItemSlots> items_;  // made once, by the first fill, under mutex_, as the next
  std::unique_ptr<TileSlots> tile_slots_;  // host_staged
  std::unique_ptr<StagingRing> ring_;
};

}  // namespace

Result<ArenaDevicePtr> make_cuda_arena_device(const CudaArenaOptions& options) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) {
    cudaGetLastError();  // it is told here
    return failed_precondition(std::string("no GPU can be used: ") + cudaGetErrorString(code));
  }
  if (options.device < 0 || options.device >= count) {
    return failed_precondition("GPU " + std::to_string(options.device) + ", this machine has " +
                               std::to_string(count));
  }
  return ArenaDevicePtr(std::make_shared<CudaArenaDevice>(options));
}

}  // namespace warproll
