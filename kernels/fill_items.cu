// take_in: grid one CTA an item, block 512 threads, 64 KiB of shared memory: a chunk's digest, and the
// first of its elements that must not be there. quantise: grid one CTA 256 blocks of 32 columns of one
// item, block 256 threads. pack: grid one CTA a half tile of one item, block 256 threads
// (moe/pack_half_tile.cuh).
#include "kernels/fill_items.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/moe/pack_half_tile.cuh"
#include "kernels/not_finite_search.cuh"
#include "kernels/quantise_block.cuh"
#include "kernels/xxh3_chunk.cuh"

namespace warproll {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int64_t kBlocksPerCta = 256;  // of quantise

// ---- digest and search ----

template <int kBits>
__device__ void search_vector(ulonglong2 v, uint32_t mask, uint64_t first_index, uint64_t* key) {
  search<kBits>(v.x, mask, first_index, key);
  search<kBits>(v.y, mask, first_index + 64 / kBits, key);
}

template <int kBits>
__device__ void see_vector(ulonglong2 v, int index, const TakeInItem& item) {
  const uint4 words = {static_cast<uint32_t>(v.x), static_cast<uint32_t>(v.x >> 32),
                       static_cast<uint32_t>(v.y), static_cast<uint32_t>(v.y >> 32)};
  if (!any_bad<kBits>(words, item.rule.mask)) return;
  search_vector<kBits>(v, item.rule.mask,
                       item.first_index + static_cast<uint64_t>(index) * (128 / kBits), item.key);
}

// The elements from byte `begin` of the chunk on, at most a block's.
template <int kBits>
__device__ void see_rest(const TakeInItem& item, uint32_t begin) {
  constexpr uint32_t kBytes = kBits / 8;
  for (uint32_t at = begin + threadIdx.x * kBytes; at + kBytes <= item.bytes;
       at += blockDim.x * kBytes) {
    uint64_t bits = 0;
    for (int b = kBytes - 1; b >= 0; --b) {
      bits = bits << 8 | static_cast<uint64_t>(item.data[at + b]);
    }
    if ((static_cast<uint32_t>(bits) & item.rule.mask) != item.rule.mask) continue;
    search<kBits>(bits, item.rule.mask, item.first_index + at / kBytes, item.key);
  }
}

template <int kBits>
__device__ void take_in(const TakeInItem& item, const xxh3::Keys& keys) {
  const bool is_short = item.bytes <= kXxh3ShortBytes;
  if constexpr (kBits != 0) {
    see_rest<kBits>(item, is_short ? 0 : xxh3::num_blocks(item.bytes) * xxh3::kBlockBytes);
  }
  if (is_short) return;
  xxh3::hash_chunk(keys, item.data, item.bytes, item.digest, [&](ulonglong2 v, int index) {
    if constexpr (kBits != 0) see_vector<kBits>(v, index, item);
  });
}

__global__ void __launch_bounds__(xxh3::kChunkThreads)
    take_in_kernel(const TakeInItem* items, const __grid_constant__ xxh3::Keys keys) {
  const TakeInItem item = items[blockIdx.x];
  switch (item.rule.bits_each) {
    case 8:
      return take_in<8>(item, keys);
    case 16:
      return take_in<16>(item, keys);
    case 32:
      return take_in<32>(item, keys);
    default:
      return take_in<0>(item, keys);
  }
}

// ---- lists of items with several CTAs each ----

// The item that this CTA works for.
template <class Item>
__device__ const Item& item_of_cta(const Item* items, int count) {
  int first = 0, last = count - 1;
  while (first < last) {
    const int middle = (first + last + 1) / 2;
    if (items[middle].first_cta <= blockIdx.x) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  return items[first];
}

__global__ void __launch_bounds__(kThreads)
    quantise_items_kernel(const QuantiseItem* items, int count) {
  const QuantiseItem& item = item_of_cta(items, count);
  const QuantiseMxfp8Params p = item.matrix;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t begin = (blockIdx.x - item.first_cta) * kBlocksPerCta;
  const int64_t end = min(begin + kBlocksPerCta, p.rows * p.cols / kMxfp8BlockCols);
#pragma unroll 4
  for (int64_t block = begin + warp; block < end; block += kWarps) {
    if (p.source_dtype == Dtype::kF32) {
      quantise_block<float>(p, block, lane, nullptr);
    } else if (p.source_dtype == Dtype::kF16) {
      quantise_block<__half>(p, block, lane, nullptr);
    } else {
      quantise_block<__nv_bfloat16>(p, block, lane, nullptr);
    }
  }
}

__global__ void __launch_bounds__(kThreads) pack_items_kernel(const PackItem* items, int count) {
  static_assert(kWarps == kPackWarps);
  const PackItem& item = item_of_cta(items, count);
  const WeightView rows = item.rows;
  const TileTarget to = item.to;
  pack_half_tile(rows, to, static_cast<int>(blockIdx.x - item.first_cta), item.scales);
}

dim3 grid_of(int64_t num_ctas) { return dim3(static_cast<unsigned>(num_ctas)); }

}  // namespace

int64_t ctas_of(const QuantiseMxfp8Params& matrix) {
  const int64_t blocks = matrix.rows * matrix.cols / kMxfp8BlockCols;
  return (blocks + kBlocksPerCta - 1) / kBlocksPerCta;
}

int64_t ctas_of(const PackItem& item) {
  return packs_nothing(item.to, item.scales) ? 0 : num_half_tiles(item.rows);
}

void take_in_items(const TakeInItem* items, int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  static const xxh3::Keys keys = xxh3::make_keys();
  LaunchConfig config(grid_of(count), xxh3::kChunkThreads, xxh3::shared_bytes(kXxh3ChunkBytes),
                      stream);
  config.run(take_in_kernel, items, keys);
}

void quantise_items(const QuantiseItem* items, int64_t count, int64_t num_ctas,
                    cudaStream_t stream) {
  if (num_ctas == 0) return;
  LaunchConfig config(grid_of(num_ctas), kThreads, 0, stream);
  config.run(quantise_items_kernel, items, static_cast<int>(count));
}

void pack_items(const PackItem* items, int64_t count, int64_t num_ctas, cudaStream_t stream) {
  if (num_ctas == 0) return;
  LaunchConfig config(grid_of(num_ctas), kThreads, 0, stream);
  config.run(pack_items_kernel, items, static_cast<int>(count));
}

}  // namespace warproll
