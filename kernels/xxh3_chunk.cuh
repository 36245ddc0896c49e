// hash_chunk: XXH3-128 of one chunk of up to 1 MiB by one CTA of kChunkThreads threads; the sums of its
// blocks are in shared memory, [blocks][8]. A warp makes a block's sums, lane 4s + j those of
// accumulators 2j and 2j + 1 from stripes s and s + 8. Internal to kernels/*.cu.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/xxh3.h"
#include "kernels/xxh3_math.h"

namespace warproll::xxh3 {

inline constexpr int kChunkThreads = 512;
inline constexpr int kUnroll = 4;  // blocks a warp has under way

// Blocks of a chunk that end in a scramble; the rest, up to a block, is behind them.
__host__ __device__ inline int num_blocks(uint64_t bytes) {
  return static_cast<int>((bytes - 1) / kBlockBytes);
}
inline int shared_bytes(uint64_t bytes) {
  return (num_blocks(bytes) + 1) * kLanes * static_cast<int>(sizeof(uint64_t));
}

struct Sums {
  uint64_t even = 0, odd = 0;
};

__device__ inline void add_stripe(Sums& sums, ulonglong2 value, const uint64_t (&keys)[2]) {
  sums.even += contribution(value.x, value.y, keys[0]);
  sums.odd += contribution(value.y, value.x, keys[1]);
}

__device__ inline void write_sums(Sums sums, uint64_t* out, int lane) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) {
    sums.even += __shfl_xor_sync(~0u, sums.even, step);
    sums.odd += __shfl_xor_sync(~0u, sums.odd, step);
  }
  if (lane < 4) {
    out[2 * lane] = sums.even;
    out[2 * lane + 1] = sums.odd;
  }
}

// The accumulators from the blocks' sums, one lane each of eight; the hash by the first of them.
__device__ inline void finish(const Keys& keys, const uint64_t* sums, int blocks,
                              const std::byte* data, uint64_t bytes, std::byte* out) {
  __shared__ uint64_t accumulators[kLanes];
  const int me = static_cast<int>(threadIdx.x);
  if (me < kLanes) {
    const uint64_t key = keys.stripe[16 + me];
    uint64_t accumulator = keys.start[me];
#pragma unroll 8
    for (int b = 0; b < blocks; ++b) {
      accumulator = scramble(accumulator + sums[b * kLanes + me], key);
    }
    const std::byte* last = data + bytes - kStripeBytes;
    accumulators[me] =
        accumulator + sums[blocks * kLanes + me] +
        contribution(read64(last + 8 * me), read64(last + 8 * (me ^ 1)), keys.last[me]);
  }
  __syncwarp();
  if (me == 0) write_hash(accumulators, keys, bytes, out);
}

// bytes: above kXxh3ShortBytes. see(vector, its index) gets every 16 bytes of the blocks that
// num_blocks() counts.
template <class See>
__device__ void hash_chunk(const Keys& keys, const std::byte* data, uint64_t bytes,
                           std::byte* digest, const See& see) {
  extern __shared__ uint64_t sums[];  // [blocks + 1][8]
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int stripe = lane / 4, pair = lane % 4;
  const int blocks = num_blocks(bytes);
  uint64_t near_keys[2], far_keys[2];
  for (int i = 0; i < 2; ++i) {
    near_keys[i] = keys.stripe[stripe + 2 * pair + i];
    far_keys[i] = keys.stripe[stripe + 8 + 2 * pair + i];
  }
  const auto* values = reinterpret_cast<const ulonglong2*>(data);  // 64 a block
  constexpr int kStep = kChunkThreads / 32;
  for (int b = warp; b < blocks; b += kStep * kUnroll) {
    ulonglong2 near[kUnroll], far[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int block = min(b + u * kStep, blocks - 1);
      near[u] = values[block * 64 + lane];
      far[u] = values[block * 64 + 32 + lane];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (b + u * kStep >= blocks) break;  // the same for the whole warp
      Sums mine;
      see(near[u], (b + u * kStep) * 64 + lane);
      see(far[u], (b + u * kStep) * 64 + 32 + lane);
      add_stripe(mine, near[u], near_keys);
      add_stripe(mine, far[u], far_keys);
      write_sums(mine, sums + (b + u * kStep) * kLanes, lane);
    }
  }
  if (warp == 0) {  // the block that is not scrambled: all stripes but the last
    const int stripes = static_cast<int>((bytes - 1 - blocks * kBlockBytes) / kStripeBytes);
    Sums mine;
    if (stripe < stripes) add_stripe(mine, values[blocks * 64 + lane], near_keys);
    if (stripe + 8 < stripes) add_stripe(mine, values[blocks * 64 + 32 + lane], far_keys);
    write_sums(mine, sums + blocks * kLanes, lane);
  }
  __syncthreads();
  if (warp == 0) finish(keys, sums, blocks, data, bytes, digest);
}

}  // namespace warproll::xxh3
