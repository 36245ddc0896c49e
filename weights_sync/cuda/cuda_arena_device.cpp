#include "weights_sync/cuda/cuda_arena_device.h"

#include <mutex>
#include <string>
#include <vector>

#include "weights_sync/cuda/buffer_pool.h"
#include "weights_sync/cuda/device_filler.h"
#include "weights_sync/cuda/fill_batch.h"

namespace warproll {
namespace {

class CudaArenaDevice final : public ArenaDevice {
 public:
  explicit CudaArenaDevice(const CudaArenaOptions& options)
      : options_(options), pool_(options.buffer_bytes) {
    select();
    for (int i = 0; i < options.num_streams; ++i) streams_.emplace_back(CudaStream::Priority::kLow);
  }

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
    digests.enqueue(0, bytes.data(), stream.get());
    stream.synchronize();
    digests.fetch();
    pool_.give(*memory, stream.get());
    return digests.get(0);
  }

 private:
  void select() const { WARPROLL_CUDA_CHECK(cudaSetDevice(options_.device)); }

  Status make_ring() {
    const std::lock_guard lock(mutex_);
    if (ring_) return ok_status();
    try {
      items_ = std::make_unique<ItemSlots>();
      ring_ = std::make_unique<StagingRing>(options_.pinned_slots, options_.pinned_slot_bytes);
    } catch (const CudaError& error) {
      if (error.code() != cudaErrorMemoryAllocation) throw;
      cudaGetLastError();  // it is told here
      return resource_exhausted(std::to_string(options_.pinned_slots) + " page-locked buffers of " +
                                std::to_string(options_.pinned_slot_bytes) +
                                " bytes: no memory for them");
    }
    return ok_status();
  }

  const CudaArenaOptions options_;
  std::vector<CudaStream> streams_;
  BufferPool pool_;
  std::mutex mutex_;
  std::unique_ptr<ItemSlots> items_;  // made once, by the first fill, under mutex_, as the next
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
