// Content digests of weights: what a trajectory, a manifest and the command line call a version by.
//
// A tensor's digest is XXH3-128 over the concatenated XXH3-128s (canonical, big-endian, 16 bytes
// each) of its 1 MiB chunks; the last chunk may be short, an empty tensor has no chunk. So it can
// be made in parallel, from a stream, or on a device.
//
// weight_digest is XXH3-128 over this byte string (integers little-endian, tensors sorted by name
// as bytes), so it does not depend on shards, buckets, order or backend:
//   "warproll weights 1\n"  u64 number of tensors, then for each tensor
//   u32 name length, name,  u32 dtype word length, dtype word ("BF16"),
//   u32 rank, i64 dimension x rank,  16 bytes tensor digest (canonical)
// layout_digest is the same over "warproll layout 1\n" and the slots of a filled arena in layout
// order (slot name, dtype, shape, digest of the slot's bytes). It checks an arena, it names
// nothing.
//
// It finds accidents and mix-ups; it is no defence against somebody who forges weights.
// Thread: pure functions; TensorHasher one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/arena.h"
#include "protocol/records.h"

namespace warproll {

class Checkpoint;

inline constexpr uint64_t kDigestChunkBytes = uint64_t{1} << 20;

// Long work tells how far it is. Called on the thread that called the work, every few MiB.
using ByteProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

Digest xxh3_128(std::span<const std::byte> bytes);  // one plain XXH3-128, canonical
Digest tensor_digest(std::span<const std::byte> bytes);
// From the XXH3-128s of a tensor's chunks, in order: for bytes that came out of order.
Digest tensor_digest_from_chunks(std::span<const Digest> chunk_digests);

// A tensor's digest from its bytes in order, in pieces of any size.
class TensorHasher {
 public:
  TensorHasher();
  TensorHasher(TensorHasher&&) noexcept;
  TensorHasher& operator=(TensorHasher&&) noexcept;
  ~TensorHasher();
  void update(std::span<const std::byte> bytes);
  // Of all bytes so far; update() may go on afterwards.
  [[nodiscard]] Digest finish() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// tensors[i] has digests[i]; any order (sorted inside). Sizes must be equal (checked invariant).
Digest weight_digest(std::span<const TensorInfo> tensors, std::span<const Digest> digests);
// The same in two steps: tens of thousands of names take longer to sort than to hash, and can be sorted
// before the digests are known.
struct DigestedTensor {
  const TensorInfo* tensor = nullptr;
  const Digest* digest = nullptr;
};
void sort_by_name(std::span<DigestedTensor> tensors);
Digest weight_digest_of_sorted(std::span<const DigestedTensor> tensors);

// arena.size() >= layout.total_bytes and slots inside it (checked invariant). num_threads 0 = as
// many as the machine has.
Digest layout_digest(const ArenaLayout& layout, std::span<const std::byte> arena,
                     int num_threads = 0);

// Of every tensor of the checkpoint, in its order. Reads every byte.
std::vector<Digest> tensor_digests(const Checkpoint& checkpoint, const ByteProgress& progress = {},
                                   int num_threads = 0);
// weight_digest of a whole checkpoint.
Digest weight_digest(const Checkpoint& checkpoint, const ByteProgress& progress = {});

}  // namespace warproll
