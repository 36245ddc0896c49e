// Buckets: how the stream of a group is cut into broadcasts. Both ends make it of what UpdateBegin says.
// Thread: plain values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "weights_sync/manifest.h"
#include "weights_sync/packed_arena.h"

namespace warproll {

struct Buckets {
  uint64_t stream_bytes = 0;
  uint64_t bucket_bytes = 0;  // the last may be short

  [[nodiscard]] uint64_t count() const { return (stream_bytes + bucket_bytes - 1) / bucket_bytes; }
  [[nodiscard]] uint64_t offset(uint64_t i) const { return i * bucket_bytes; }
  [[nodiscard]] uint64_t bytes(uint64_t i) const {
    return std::min(bucket_bytes, stream_bytes - offset(i));
  }
  [[nodiscard]] std::string name(uint64_t i) const {
    return "bucket " + std::to_string(i) + " of " + std::to_string(count());
  }
  // Of a staging slot that any of them fits.
  [[nodiscard]] uint64_t slot_bytes() const {
    return std::max(kMinBucketBytes, std::min(bucket_bytes, stream_bytes));
  }
};

inline Buckets buckets_of(const Manifest& manifest, const std::optional<PackedArena>& packed) {
  return {packed ? packed->bytes : manifest.stream_bytes(), manifest.bucket_bytes};
}

}  // namespace warproll
