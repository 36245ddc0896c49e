// take_in_items: grid one CTA 32 blocks of 1 KiB of one item, block 128 threads. digest_items: grid one CTA
// 32 items, block 256 threads, eight lanes an item.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/load_kernels.cuh"
#include "kernels/fill_items.h"
#include "kernels/item_of_cta.cuh"
#include "kernels/not_finite_search.cuh"
#include "kernels/quantise_block.cuh"
#include "kernels/xxh3_chunk.cuh"

namespace warproll {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kUnroll = 2;  // blocks a warp has under way
constexpr int kBlocksPerCta = 32;
constexpr int kDigestThreads = 256;
constexpr int kAhead = 16;                                   // sums on their way out of L2
constexpr int kDigestItems = kDigestThreads / xxh3::kLanes;  // a CTA's

__host__ __device__ bool is_short(const TakeInItem& item) { return item.bytes <= kXxh3ShortBytes; }
__host__ __device__ int num_blocks(const TakeInItem& item) {
  return is_short(item) ? 0 : xxh3::num_blocks(item.bytes);
}

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

// 16 bytes of BF16 at `index`, by whole warps.
__device__ void quantise_vector(ulonglong2 v, int index, bool writes, const TakeInItem& item) {
  EightSources<__nv_bfloat16> eight;
  memcpy(&eight, &v, sizeof(eight));
  const QuantiseMxfp8Params to = {.elements = item.elements, .scales = item.scales};
  quantise_eight(to, eight, index, writes, nullptr);
}

// From vector `first` of the chunk on, less than 2 KiB, by one warp.
__device__ void quantise_rest(const TakeInItem& item, int first) {
  const auto* values = reinterpret_cast<const ulonglong2*>(item.data);
  const int end = static_cast<int>(item.bytes / sizeof(ulonglong2));
  for (int base = first; base < end; base += 32) {
    const int at = base + static_cast<int>(threadIdx.x) % 32;
    quantise_vector(values[min(at, end - 1)], at, at < end, item);
  }
}

template <int kBits, bool kQuantise = false>
__device__ void take_in(const TakeInItem& item, const xxh3::Keys& keys) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int blocks = num_blocks(item);
  const int begin = static_cast<int>(blockIdx.x - item.first_cta) * kBlocksPerCta;
  const int end = min(begin + kBlocksPerCta, blocks);
  const auto* values = reinterpret_cast<const ulonglong2*>(item.data);
  xxh3::sum_blocks<kUnroll>(keys, values, begin + warp, end, kWarps, item.sums,
                            [&](ulonglong2 v, int index) {
                              if constexpr (kBits != 0) see_vector<kBits>(v, index, item);
                              if constexpr (kQuantise) quantise_vector(v, index, true, item);
                            });
  if (end < blocks) return;
  if constexpr (kBits != 0) {
    see_rest<kBits>(item, static_cast<uint32_t>(blocks * xxh3::kBlockBytes));
  }
  if constexpr (kQuantise) {
    if (warp == 1) quantise_rest(item, blocks * (xxh3::kBlockBytes / sizeof(ulonglong2)));
  }
  if (warp == 0 && !is_short(item)) xxh3::sum_last_block(keys, values, item.bytes, item.sums);
}

__global__ void __launch_bounds__(kThreads)
    take_in_kernel(const TakeInItem* items, int count, const __grid_constant__ xxh3::Keys keys) {
  const TakeInItem item = item_of_cta(items, count);
  switch (item.rule.bits_each) {
    case 8:
      return take_in<8>(item, keys);
    case 16:
      return item.elements != nullptr ? take_in<16, true>(item, keys) : take_in<16>(item, keys);
    case 32:
      return take_in<32>(item, keys);
    default:
      return take_in<0>(item, keys);
  }
}

__global__ void __launch_bounds__(kDigestThreads)
    digest_kernel(const TakeInItem* items, int count, const __grid_constant__ xxh3::Keys keys) {
  const int mine =
      static_cast<int>(blockIdx.x) * kDigestItems + static_cast<int>(threadIdx.x) / xxh3::kLanes;
  const TakeInItem item = mine < count ? items[mine] : TakeInItem();
  xxh3::finish<kAhead>(keys, item.sums, item.data, is_short(item) ? 0 : item.bytes, item.digest);
}

const xxh3::Keys& keys() {
  static const xxh3::Keys made = xxh3::make_keys();
  return made;
}

}  // namespace

uint64_t sums_bytes_of(const TakeInItem& item) {
  return is_short(item) ? 0 : static_cast<uint64_t>(xxh3::sums_bytes(item.bytes));
}

int64_t ctas_of(const TakeInItem& item) {
  return std::max(1, (num_blocks(item) + kBlocksPerCta - 1) / kBlocksPerCta);
}

void take_in_items(std::span<const TakeInItem> items, int64_t num_ctas, cudaStream_t stream) {
  if (items.empty()) return;
  LaunchConfig config(dim3(static_cast<unsigned>(num_ctas)), kThreads, 0, stream);
  config.all_shared();
  config.run(take_in_kernel, items.data(), static_cast<int>(items.size()), keys());
}

void digest_items(std::span<const TakeInItem> items, cudaStream_t stream) {
  if (items.empty()) return;
  const size_t ctas = (items.size() + kDigestItems - 1) / kDigestItems;
  LaunchConfig config(dim3(static_cast<unsigned>(ctas)), kDigestThreads, 0, stream);
  config.all_shared();
  config.run(digest_kernel, items.data(), static_cast<int>(items.size()), keys());
}

void load_take_in_kernels() { load_kernels(take_in_kernel, digest_kernel); }

}  // namespace warproll
