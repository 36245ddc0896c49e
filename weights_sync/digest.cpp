#include "weights_sync/digest.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "protocol/status.h"
#include "weights_sync/checkpoint.h"
#include "weights_sync/parallel.h"

namespace warproll {
namespace {

Digest canonical(XXH128_hash_t hash) {
  XXH128_canonical_t canonical_form;
  XXH128_canonicalFromHash(&canonical_form, hash);
  Digest digest;
  static_assert(sizeof(canonical_form.digest) == sizeof(Digest));
  std::memcpy(digest.data(), canonical_form.digest, digest.size());
  return digest;
}

struct StateDeleter {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

// One running XXH3-128.
class Hash {
 public:
  Hash() : state_(XXH3_createState()) {
    if (!state_) throw std::bad_alloc();
    reset();
  }
  Hash(const Hash& other) : Hash() { XXH3_copyState(state_.get(), other.state_.get()); }
  Hash& operator=(const Hash&) = delete;
  void reset() { XXH3_128bits_reset(state_.get()); }
  void add(const void* data, size_t bytes) { XXH3_128bits_update(state_.get(), data, bytes); }
  void add(std::string_view text) { add(text.data(), text.size()); }
  template <typename T>
  void add_little_endian(T value) {
    std::array<uint8_t, sizeof(T)> bytes;
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * i));
    }
    add(bytes.data(), bytes.size());
  }
  [[nodiscard]] Digest digest() const { return canonical(XXH3_128bits_digest(state_.get())); }

 private:
  std::unique_ptr<XXH3_state_t, StateDeleter> state_;
};

void add_tensor(Hash& hash, std::string_view name, Dtype dtype, const std::vector<int64_t>& shape,
                const Digest& digest) {
  hash.add_little_endian(static_cast<uint32_t>(name.size()));
  hash.add(name);
  const std::string_view word = to_string(dtype);
  hash.add_little_endian(static_cast<uint32_t>(word.size()));
  hash.add(word);
  hash.add_little_endian(static_cast<uint32_t>(shape.size()));
  for (const int64_t dimension : shape) hash.add_little_endian(dimension);
  hash.add(digest.data(), digest.size());
}

uint64_t num_chunks(uint64_t bytes) { return (bytes + kDigestChunkBytes - 1) / kDigestChunkBytes; }

// Digests of many byte ranges, cut into chunks so that one huge tensor keeps all threads busy.
std::vector<Digest> digest_all(std::span<const std::span<const std::byte>> ranges,
                               const ByteProgress& progress, int num_threads) {
  struct Chunk {
    size_t range = 0;
    uint64_t offset = 0;
  };
  std::vector<Chunk> chunks;
  uint64_t total_bytes = 0;
  for (size_t r = 0; r < ranges.size(); ++r) {
    for (uint64_t c = 0; c < num_chunks(ranges[r].size()); ++c) {
      chunks.push_back({r, c * kDigestChunkBytes});
    }
    total_bytes += ranges[r].size();
  }
  std::vector<Digest> chunk_digests(chunks.size());
  std::atomic<uint64_t> done_bytes{0};
  for_each_index(
      chunks.size(), num_threads,
      [&](size_t i) {
        const auto range = ranges[chunks[i].range];
        const auto bytes = range.subspan(
            chunks[i].offset, std::min(kDigestChunkBytes, range.size() - chunks[i].offset));
        chunk_digests[i] = xxh3_128(bytes);
        done_bytes += bytes.size();
      },
      [&] {
        if (progress) progress(done_bytes, total_bytes);
      });
  if (progress) progress(total_bytes, total_bytes);

  std::vector<Digest> digests;
  digests.reserve(ranges.size());
  size_t first = 0;
  for (const auto range : ranges) {
    const size_t count = num_chunks(range.size());
    digests.push_back(tensor_digest_from_chunks(std::span(chunk_digests).subspan(first, count)));
    first += count;
  }
  return digests;
}

}  // namespace

Digest xxh3_128(std::span<const std::byte> bytes) {
  return canonical(XXH3_128bits(bytes.data(), bytes.size()));
}

Digest tensor_digest_from_chunks(std::span<const Digest> chunk_digests) {
  return xxh3_128(std::as_bytes(chunk_digests));
}

Digest tensor_digest(std::span<const std::byte> bytes) {
  TensorHasher hasher;
  hasher.update(bytes);
  return hasher.finish();
}

struct TensorHasher::Impl {
  Hash chunk;  // the open chunk
  uint64_t chunk_bytes = 0;
  Hash outer;  // the digests of the closed ones
};

TensorHasher::TensorHasher() : impl_(std::make_unique<Impl>()) {}
TensorHasher::TensorHasher(TensorHasher&&) noexcept = default;
TensorHasher& TensorHasher::operator=(TensorHasher&&) noexcept = default;
TensorHasher::~TensorHasher() = default;

void TensorHasher::update(std::span<const std::byte> bytes) {
  const auto close_chunk = [this](const Digest& digest) {
    impl_->outer.add(digest.data(), digest.size());
  };
  while (!bytes.empty()) {
    const uint64_t take = std::min<uint64_t>(kDigestChunkBytes - impl_->chunk_bytes, bytes.size());
    if (take == kDigestChunkBytes) {  // a whole chunk at once needs no running state
      close_chunk(xxh3_128(bytes.first(take)));
    } else {
      impl_->chunk.add(bytes.data(), take);
      impl_->chunk_bytes += take;
      if (impl_->chunk_bytes == kDigestChunkBytes) {
        close_chunk(impl_->chunk.digest());
        impl_->chunk.reset();
        impl_->chunk_bytes = 0;
      }
    }
    bytes = bytes.subspan(take);
  }
}

Digest TensorHasher::finish() const {
  if (impl_->chunk_bytes == 0) return impl_->outer.digest();
  Hash outer = impl_->outer;  // a copy: update() may go on
  const Digest last = impl_->chunk.digest();
  outer.add(last.data(), last.size());
  return outer.digest();
}

Digest weight_digest(std::span<const TensorInfo> tensors, std::span<const Digest> digests) {
  WARPROLL_CHECK(tensors.size() == digests.size(), std::to_string(tensors.size()) + " tensors, " +
                                                       std::to_string(digests.size()) + " digests");
  std::vector<DigestedTensor> sorted;
  for (size_t i = 0; i < tensors.size(); ++i) sorted.push_back({&tensors[i], &digests[i]});
  sort_by_name(sorted);
  return weight_digest_of_sorted(sorted);
}

void sort_by_name(std::span<DigestedTensor> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const DigestedTensor& a, const DigestedTensor& b) {
    return a.tensor->name < b.tensor->name;
  });
}

Digest weight_digest_of_sorted(std::span<const DigestedTensor> tensors) {
  Hash hash;
  hash.add("warproll weights 1\n");
  hash.add_little_endian(static_cast<uint64_t>(tensors.size()));
  for (const auto& [tensor, digest] : tensors) {
    add_tensor(hash, tensor->name, tensor->dtype, tensor->shape, *digest);
  }
  return hash.digest();
}

Digest layout_digest(const ArenaLayout& layout, std::span<const std::byte> arena, int num_threads) {
  std::vector<std::span<const std::byte>> ranges;
  ranges.reserve(layout.slots.size());
  for (const ArenaSlot& slot : layout.slots) {
    WARPROLL_CHECK(
        slot.offset_bytes <= arena.size() && slot.bytes <= arena.size() - slot.offset_bytes,
        "slot " + slot.name + " leaves the arena of " + std::to_string(arena.size()));
    ranges.push_back(arena.subspan(slot.offset_bytes, slot.bytes));
  }
  const std::vector<Digest> digests = digest_all(ranges, {}, num_threads);
  Hash hash;
  hash.add("warproll layout 1\n");
  hash.add_little_endian(static_cast<uint64_t>(layout.slots.size()));
  for (size_t i = 0; i < layout.slots.size(); ++i) {
    const ArenaSlot& slot = layout.slots[i];
    add_tensor(hash, slot.name, slot.dtype, slot.shape, digests[i]);
  }
  return hash.digest();
}

std::vector<Digest> tensor_digests(const Checkpoint& checkpoint, const ByteProgress& progress,
                                   int num_threads) {
  std::vector<std::span<const std::byte>> ranges;
  ranges.reserve(checkpoint.tensors().size());
  for (size_t i = 0; i < checkpoint.tensors().size(); ++i) ranges.push_back(checkpoint.bytes(i));
  return digest_all(ranges, progress, num_threads);
}

Digest weight_digest(const Checkpoint& checkpoint, const ByteProgress& progress) {
  return weight_digest(checkpoint.tensors(), tensor_digests(checkpoint, progress));
}

}  // namespace warproll
