// xxh3_chunks: grid one CTA a chunk of 1 MiB, block 512 threads, 64 KiB of shared memory.
#include "kernels/xxh3.h"

#include <string>

#include "kernels/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/xxh3_chunk.cuh"

namespace warproll {
namespace {

using namespace xxh3;

__global__ void __launch_bounds__(kChunkThreads)
    xxh3_chunks_kernel(Xxh3ChunksParams p, const __grid_constant__ Keys keys) {
  const uint64_t at = blockIdx.x * kXxh3ChunkBytes;
  const uint64_t bytes = min(p.bytes - at, kXxh3ChunkBytes);
  if (bytes <= kXxh3ShortBytes) return;
  hash_chunk(keys, p.data + at, bytes, p.digests + blockIdx.x * 16, [](ulonglong2, int) {});
}

}  // namespace

void xxh3_chunks(const Xxh3ChunksParams& p, cudaStream_t stream) {
  check_argument(reinterpret_cast<uintptr_t>(p.data) % 16 == 0,
                 [] { return std::string("xxh3_chunks: data is not 16-byte aligned"); });
  if (p.bytes == 0) return;
  static const Keys keys = make_keys();
  const uint64_t chunks = (p.bytes + kXxh3ChunkBytes - 1) / kXxh3ChunkBytes;
  const uint64_t first = p.bytes < kXxh3ChunkBytes ? p.bytes : kXxh3ChunkBytes;
  LaunchConfig config(dim3(static_cast<unsigned>(chunks)), kChunkThreads, shared_bytes(first),
                      stream);
  config.run(xxh3_chunks_kernel, p, keys);
}

}  // namespace warproll
