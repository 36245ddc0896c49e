// DeviceDigests: tensor digests (weights_sync/digest.h) of ranges of device memory, many under way at
// once: chunk hashes are made by kernels and stay on the device until fetch().
// Device memory: 16 bytes a MiB, and 256 a range whose last chunk is short; its own, or what it is given.
// Thread: enqueue and add any, one call a range; the others alone. Errors: CudaError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/device_buffer.h"
#include "protocol/records.h"
#include "weights_sync/cuda/fill_batch.h"

namespace warproll {

class DeviceDigests {
 public:
  // One range for each of `sizes`, in bytes. Memory comes with one of the next two, before all else.
  explicit DeviceDigests(std::span<const uint64_t> sizes);
  void allocate();
  void use(std::byte* memory) { device_ = memory; }  // [device_bytes()], 16-byte aligned
  [[nodiscard]] uint64_t device_bytes() const { return device_bytes_; }

  // data: 16-byte aligned, unchanged until the work on `stream` has ended.
  void enqueue(size_t range, const std::byte* data, cudaStream_t stream) const;
  // Bytes [at, at + bytes) of a range alone; both multiples of kDigestChunkBytes unless the range ends.
  void enqueue_part(size_t range, uint64_t at, const std::byte* data, uint64_t bytes,
                    cudaStream_t stream) const;
  // The same as items of `list`, one of the lists of `batch`; data: there when the list is worked on, and
  // until the batch has ended. With a rule its elements are searched too, for `key`.
  void add(size_t range, const std::byte* data, NotFiniteRule rule, uint64_t* key,
           std::vector<TakeInItem>& list, FillBatch& batch) const;
  // Blocking; after the work of every enqueue() has ended.
  void fetch();
  [[nodiscard]] Digest get(size_t range) const;  // after fetch()

 private:
  struct Range {
    uint64_t bytes = 0;
    uint64_t first_chunk = 0;
    uint64_t num_chunks = 0;
    uint64_t tail_at = 0;  // in the buffer: the bytes of a last chunk that the kernel leaves out
    uint64_t tail_bytes = 0;
  };
  std::vector<Range> ranges_;
  uint64_t device_bytes_ = 0;
  DeviceBuffer<std::byte> own_;
  std::byte* device_ = nullptr;  // chunk hashes, then tails
  std::vector<std::byte> host_;
};

}  // namespace warproll
