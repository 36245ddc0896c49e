// xxh3_chunks: grid one CTA a chunk of 1 MiB, block 512 threads, 64 KiB of shared memory.
#include "kernels/xxh3.h"

#include <string>

#include "kernels/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/xxh3_chunk.cuh"

namespace warproll {
namespace {

using namespace xxh3;

constexpr int kThreads = 512;
constexpr int kUnroll = 4;  // blocks a warp has under way
constexpr int kAhead = 4;   // sums out of shared memory

__global__ void __launch_bounds__(kThreads)
    xxh3_chunks_kernel(Xxh3ChunksParams p, const __grid_constant__ Keys keys) {
  extern __shared__ uint64_t sums[];  // [blocks + 1][8]
  const uint64_t at = blockIdx.x * kXxh3ChunkBytes;
  const uint64_t bytes = min(p.bytes - at, kXxh3ChunkBytes);
  if (bytes <= kXxh3ShortBytes) return;
  const std::byte* const data = p.data + at;
  const auto* values = reinterpret_cast<const ulonglong2*>(data);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  sum_blocks<kUnroll>(keys, values, warp, num_blocks(bytes), kThreads / 32, sums,
                      [](ulonglong2, int) {});
  if (warp == 0) sum_last_block(keys, values, bytes, sums);
  __syncthreads();
  if (warp != 0) return;
  finish<kAhead>(keys, sums, data, thread < kLanes ? bytes : 0, p.digests + blockIdx.x * 16);
}

}  // namespace

void xxh3_chunks(const Xxh3ChunksParams& p, cudaStream_t stream) {
  check_argument(reinterpret_cast<uintptr_t>(p.data) % 16 == 0,
                 [] { return std::string("xxh3_chunks: data is not 16-byte aligned"); });
  if (p.bytes == 0) return;
  static const Keys keys = make_keys();
  const uint64_t chunks = (p.bytes + kXxh3ChunkBytes - 1) / kXxh3ChunkBytes;
  const uint64_t first = p.bytes < kXxh3ChunkBytes ? p.bytes : kXxh3ChunkBytes;
  LaunchConfig config(dim3(static_cast<unsigned>(chunks)), kThreads, sums_bytes(first), stream);
  config.run(xxh3_chunks_kernel, p, keys);
}

}  // namespace warproll
