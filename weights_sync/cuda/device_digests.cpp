#include "weights_sync/cuda/device_digests.h"

#include <algorithm>
#include <cstring>

#include "kernels/xxh3.h"
#include "weights_sync/digest.h"

namespace warproll {
namespace {

static_assert(kXxh3ChunkBytes == kDigestChunkBytes);
constexpr uint64_t kTailBytes = 256;  // a tail's room

}  // namespace

DeviceDigests::DeviceDigests(std::span<const uint64_t> sizes) {
  uint64_t chunks = 0, tails = 0;
  for (const uint64_t bytes : sizes) {
    Range range{.bytes = bytes, .first_chunk = chunks};
    range.num_chunks = (bytes + kDigestChunkBytes - 1) / kDigestChunkBytes;
    chunks += range.num_chunks;
    const uint64_t last = bytes % kDigestChunkBytes;
    if (last > 0 && last <= kXxh3ShortBytes) {
      range.tail_bytes = last;
      range.tail_at = tails++ * kTailBytes;
    }
    ranges_.push_back(range);
  }
  for (Range& range : ranges_) range.tail_at += chunks * sizeof(Digest);
  device_bytes_ = chunks * sizeof(Digest) + tails * kTailBytes;
}

void DeviceDigests::allocate() {
  own_ = DeviceBuffer<std::byte>(device_bytes_);
  device_ = own_.data();
}

void DeviceDigests::enqueue(size_t range, const std::byte* data, cudaStream_t stream) const {
  enqueue_part(range, 0, data, ranges_[range].bytes, stream);
}

void DeviceDigests::enqueue_part(size_t range_index, uint64_t at, const std::byte* data,
                                 uint64_t bytes, cudaStream_t stream) const {
  const Range& range = ranges_[range_index];
  const uint64_t chunk = range.first_chunk + at / kDigestChunkBytes;
  xxh3_chunks({.data = data, .bytes = bytes, .digests = device_ + chunk * sizeof(Digest)}, stream);
  if (range.tail_bytes == 0 || at + bytes < range.bytes) return;
  WARPROLL_CUDA_CHECK(cudaMemcpyAsync(device_ + range.tail_at, data + bytes - range.tail_bytes,
                                      range.tail_bytes, cudaMemcpyDeviceToDevice, stream));
}

void DeviceDigests::add(size_t range_index, const std::byte* data, NotFiniteRule rule,
                        uint64_t* key, std::vector<TakeInItem>& list, FillBatch& batch) const {
  const Range& range = ranges_[range_index];
  const uint64_t element_bytes = std::max<uint64_t>(rule.bits_each / 8, 1);
  for (uint64_t i = 0; i < range.num_chunks; ++i) {
    const uint64_t at = i * kDigestChunkBytes;
    list.push_back({.data = data + at,
                    .digest = device_ + (range.first_chunk + i) * sizeof(Digest),
                    .key = key,
                    .first_index = at / element_bytes,
                    .bytes = static_cast<uint32_t>(std::min(range.bytes - at, kDigestChunkBytes)),
                    .rule = rule});
  }
  if (range.tail_bytes == 0) return;
  batch.copy(device_ + range.tail_at, data + range.bytes - range.tail_bytes, range.tail_bytes);
}

void DeviceDigests::fetch() {
  host_.resize(device_bytes_);
  if (host_.empty()) return;
  WARPROLL_CUDA_CHECK(cudaMemcpy(host_.data(), device_, host_.size(), cudaMemcpyDeviceToHost));
}

Digest DeviceDigests::get(size_t range_index) const {
  const Range& range = ranges_[range_index];
  std::vector<Digest> chunks(range.num_chunks);
  std::memcpy(chunks.data(), host_.data() + range.first_chunk * sizeof(Digest),
              chunks.size() * sizeof(Digest));
  if (range.tail_bytes != 0) {
    chunks.back() = xxh3_128({host_.data() + range.tail_at, range.tail_bytes});
  }
  return tensor_digest_from_chunks(chunks);
}

}  // namespace warproll
