// The kernels' XXH3 against the xxHash library's.
#include "kernels/xxh3.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/weights_sync/checkpoint_fixtures.h"
#include "weights_sync/digest.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;

TEST(Xxh3, the_cpu_twin_gives_the_hash_of_the_library) {
  std::mt19937_64 random(3);
  const std::vector<std::byte> bytes = random_bytes(3 << 20, random);
  for (const uint64_t size :
       {uint64_t{241}, uint64_t{256}, uint64_t{257}, uint64_t{1023}, uint64_t{1024}, uint64_t{1025},
        uint64_t{1088}, uint64_t{1089}, uint64_t{2048}, uint64_t{5000}, kXxh3ChunkBytes - 1,
        kXxh3ChunkBytes, kXxh3ChunkBytes + 241, 2 * kXxh3ChunkBytes + 1000, 3 * kXxh3ChunkBytes}) {
    const std::span<const std::byte> data = std::span(bytes).first(size);
    std::vector<Digest> digests((size + kXxh3ChunkBytes - 1) / kXxh3ChunkBytes);
    xxh3_chunks_cpu({data.data(), size, reinterpret_cast<std::byte*>(digests.data())});
    for (size_t c = 0; c < digests.size(); ++c) {
      const uint64_t at = c * kXxh3ChunkBytes;
      EXPECT_EQ(to_hex(digests[c]),
                to_hex(xxh3_128(data.subspan(at, std::min(kXxh3ChunkBytes, size - at)))))
          << size << " bytes, chunk " << c;
    }
    EXPECT_EQ(tensor_digest_from_chunks(digests), tensor_digest(data)) << size;
  }
}

TEST(Xxh3, a_short_last_chunk_is_left_alone) {
  std::mt19937_64 random(4);
  const std::vector<std::byte> bytes = random_bytes(kXxh3ChunkBytes + 240, random);
  Digest digests[2] = {};
  xxh3_chunks_cpu({bytes.data(), bytes.size(), reinterpret_cast<std::byte*>(digests)});
  EXPECT_NE(digests[0], Digest{});
  EXPECT_EQ(digests[1], Digest{});
}

}  // namespace
}  // namespace warproll
