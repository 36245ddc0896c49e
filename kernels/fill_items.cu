// quantise_items: grid one CTA 1024 times eight columns of one item, block 256 threads. pack_items: grid
// num_pack_ctas() of each item, block 256 threads (moe/pack_half_tile.cuh).
#include "kernels/fill_items.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/item_of_cta.cuh"
#include "kernels/moe/pack_half_tile.cuh"
#include "kernels/quantise_block.cuh"

namespace warproll {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kPerThread = 4;  // of quantise: eight columns each
constexpr int64_t kEightsPerCta = kThreads * kPerThread;

__global__ void __launch_bounds__(kThreads)
    quantise_items_kernel(const QuantiseItem* items, int count) {
  const QuantiseItem& item = item_of_cta(items, count);
  const QuantiseMxfp8Params p = item.matrix;
  const int64_t begin = (blockIdx.x - item.first_cta) * kEightsPerCta;
  const int64_t end = min(begin + kEightsPerCta, p.rows * p.cols / 8);
  if (p.source_dtype == Dtype::kF32) {
    quantise_eights<float, kThreads, kPerThread>(p, begin, end, nullptr);
  } else if (p.source_dtype == Dtype::kF16) {
    quantise_eights<__half, kThreads, kPerThread>(p, begin, end, nullptr);
  } else {
    quantise_eights<__nv_bfloat16, kThreads, kPerThread>(p, begin, end, nullptr);
  }
}

__global__ void __launch_bounds__(kThreads) pack_items_kernel(const PackItem* items, int count) {
  static_assert(kWarps == kPackWarps);
  const PackItem& item = item_of_cta(items, count);
  const WeightView rows = item.rows;
  const TileTarget to = item.to;
  pack_half_tiles(rows, to, static_cast<int>(blockIdx.x - item.first_cta), item.scales);
}

dim3 grid_of(int64_t num_ctas) { return dim3(static_cast<unsigned>(num_ctas)); }

}  // namespace

int64_t ctas_of(const QuantiseMxfp8Params& matrix) {
  const int64_t eights = matrix.rows * matrix.cols / 8;
  return (eights + kEightsPerCta - 1) / kEightsPerCta;
}

int64_t ctas_of(const PackItem& item) {
  return packs_nothing(item.to, item.scales) ? 0 : num_pack_ctas(item.rows, item.scales);
}

void quantise_items(const QuantiseItem* items, int64_t count, int64_t num_ctas,
                    cudaStream_t stream) {
  if (num_ctas == 0) return;
  LaunchConfig config(grid_of(num_ctas), kThreads, 0, stream);
  config.all_shared();
  config.run(quantise_items_kernel, items, static_cast<int>(count));
}

void pack_items(const PackItem* items, int64_t count, int64_t num_ctas, cudaStream_t stream) {
  if (num_ctas == 0) return;
  LaunchConfig config(grid_of(num_ctas), kThreads, 0, stream);
  config.all_shared();
  config.run(pack_items_kernel, items, static_cast<int>(count));
}

}  // namespace warproll
