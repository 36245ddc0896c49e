// XXH3-128 of a chunk of up to 1 MiB in two parts: the sums of its blocks, [blocks + 1][8], by any warps
// (a warp makes a block's sums, lane 4s + j those of accumulators 2j and 2j + 1 from stripes s and
// s + 8), and the hash from them, by eight lanes. Chunks of more than kXxh3ShortBytes. Internal to
// kernels/*.cu.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/xxh3.h"
#include "kernels/xxh3_math.h"

namespace warproll::xxh3 {

// Blocks of a chunk that end in a scramble; the rest, up to a block, is behind them.
__host__ __device__ inline int num_blocks(uint64_t bytes) {
  return static_cast<int>((bytes - 1) / kBlockBytes);
}
// Of its sums.
__host__ __device__ inline int sums_bytes(uint64_t bytes) {
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

// The sums of blocks begin, begin + step, .. below `end`, by one warp. see(vector, its index in the
// chunk) gets every 16 bytes of them.
template <int kUnroll, class See>
__device__ void sum_blocks(const Keys& keys, const ulonglong2* values, int begin, int end, int step,
                           uint64_t* sums, const See& see) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_key = lane / 4 + 2 * (lane % 4);
  uint64_t near_keys[2], far_keys[2];
  for (int i = 0; i < 2; ++i) {
    near_keys[i] = keys.stripe[first_key + i];
    far_keys[i] = keys.stripe[first_key + 8 + i];
  }
  for (int b = begin; b < end; b += step * kUnroll) {
    ulonglong2 near[kUnroll], far[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int block = min(b + u * step, end - 1);
      near[u] = values[block * 64 + lane];
      far[u] = values[block * 64 + 32 + lane];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (b + u * step >= end) break;  // the same for the whole warp
      Sums mine;
      see(near[u], (b + u * step) * 64 + lane);
      see(far[u], (b + u * step) * 64 + 32 + lane);
      add_stripe(mine, near[u], near_keys);
      add_stripe(mine, far[u], far_keys);
      write_sums(mine, sums + (b + u * step) * kLanes, lane);
    }
  }
}

// Of the block that is not scrambled: all its stripes but the last. By one warp.
__device__ inline void sum_last_block(const Keys& keys, const ulonglong2* values, uint64_t bytes,
                                      uint64_t* sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int stripe = lane / 4, pair = lane % 4;
  const int blocks = num_blocks(bytes);
  const int stripes = static_cast<int>((bytes - 1 - blocks * kBlockBytes) / kStripeBytes);
  Sums mine;
  for (int half = 0; half < 2; ++half) {
    const int at = stripe + 8 * half;
    const uint64_t pair_keys[2] = {keys.stripe[at + 2 * pair], keys.stripe[at + 2 * pair + 1]};
    if (at < stripes) add_stripe(mine, values[blocks * 64 + 32 * half + lane], pair_keys);
  }
  write_sums(mine, sums + blocks * kLanes, lane);
}

// A chunk's hash from the sums of its blocks, by eight neighbouring lanes, an accumulator each. All
// lanes of the warp take part; those whose `bytes` is 0 have nothing to do.
template <int kAhead>
__device__ void finish(const Keys& keys, const uint64_t* sums, const std::byte* data,
                       uint64_t bytes, std::byte* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int me = lane % kLanes;
  uint64_t accumulator = keys.start[me];
  if (bytes != 0) {
    const int blocks = num_blocks(bytes);
    const uint64_t key = keys.stripe[16 + me];
    // The sums of the next kAhead blocks are on their way while one is scrambled.
    const uint64_t* mine = sums + me;
    uint64_t ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead[i] = mine[min(i, blocks) * kLanes];
    int b = 0;
    for (; b + kAhead <= blocks; b += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        accumulator = scramble(accumulator + ahead[i], key);
        ahead[i] = mine[min(b + kAhead + i, blocks) * kLanes];
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (b + i < blocks) accumulator = scramble(accumulator + ahead[i], key);
    }
    const std::byte* last = data + bytes - kStripeBytes;
    accumulator += sums[blocks * kLanes + me] +
                   contribution(read64(last + 8 * me), read64(last + 8 * (me ^ 1)), keys.last[me]);
  }
  __syncwarp();
  uint64_t all[kLanes];
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    all[i] = __shfl_sync(~0u, accumulator, lane / kLanes * kLanes + i);
  }
  if (me == 0 && bytes != 0) write_hash(all, keys, bytes, out);
}

}  // namespace warproll::xxh3
