// xxh3_chunks: XXH3-128 of each chunk of a buffer, as digests of weights want them (a tensor's digest
// is a hash over its chunks' hashes). Source: the XXH3 specification (xxHash project,
// doc/xxhash_spec.md), long inputs, default secret, seed 0. Bit for bit what the xxHash library gives.
//
// Of a block of 1024 bytes the 16 stripes' contributions are independent sums; only the scramble
// between two blocks is sequential. So a CTA takes a chunk: all warps make the sums, then eight lanes
// run through them.
// Short inputs have formulas of their own and are left to the caller: a last chunk of 1 to
// kXxh3ShortBytes bytes gets no digest.
// Thread: any, one stream. Errors: std::invalid_argument (alignment), CudaError.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"

namespace warproll {

inline constexpr uint64_t kXxh3ChunkBytes = uint64_t{1} << 20;
inline constexpr uint64_t kXxh3ShortBytes = 240;

struct Xxh3ChunksParams {
  const std::byte* data = nullptr;  // [bytes]; 16-byte aligned
  uint64_t bytes = 0;
  std::byte* digests = nullptr;  // [ceil(bytes / kXxh3ChunkBytes)] x 16, canonical; 16-byte aligned
};
void xxh3_chunks(const Xxh3ChunksParams& params, cudaStream_t stream);
void xxh3_chunks_cpu(const Xxh3ChunksParams& params);

}  // namespace warproll
