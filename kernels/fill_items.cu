// quantise_items: grid num_quantise_ctas() of each item, block 256 threads (quantise_block.cuh). pack_items:
// grid num_pack_ctas() of each item, block 256 threads (moe/pack_half_tile.cuh). pack_tiles: num_tile_ctas(), 256
// threads (moe/pack_whole_tile.cuh).
#include "kernels/fill_items.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/load_kernels.cuh"
#include "kernels/item_of_cta.cuh"
#include "kernels/moe/pack_half_tile.cuh"
#include "kernels/moe/pack_whole_tile.cuh"
#include "kernels/quantise_block.cuh"

namespace warproll {
namespace {

__global__ void __launch_bounds__(kQuantiseThreads)
    quantise_items_kernel(const QuantiseItem* items, int count) {
  const QuantiseItem& item = item_of_cta(items, count);
  const QuantiseMxfp8Params p = item.matrix;
  const int64_t begin = (blockIdx.x - item.first_cta) * kQuantiseEights;
  const int64_t end = min(begin + kQuantiseEights, p.rows * p.cols / 8);
  if (p.source_dtype == Dtype::kF32) {
    quantise_eights<float>(p, begin, end, nullptr);
  } else if (p.source_dtype == Dtype::kF16) {
    quantise_eights<__half>(p, begin, end, nullptr);
  } else {
    quantise_eights<__nv_bfloat16>(p, begin, end, nullptr);
  }
}

__global__ void __launch_bounds__(kPackWarps * 32)
    pack_items_kernel(const PackItem* items, int count) {
  const PackItem& item = item_of_cta(items, count);
  const WeightView rows = item.rows;
  const TileTarget to = item.to;
  pack_half_tiles(rows, to, static_cast<int>(blockIdx.x - item.first_cta), item.scales);
}

__global__ void __launch_bounds__(kPackWarps * 32)
    pack_tiles_kernel(const TileItem* items, int count) {
  const TileItem& item = item_of_cta(items, count);
  const WeightView low = item.rows, high = item.to.gate_up ? item.up : item.rows;
  const TileTarget to = item.to;
  pack_whole_tiles(low, high, to, static_cast<int>(blockIdx.x - item.first_cta));
}

template <class Item>
void launch(void (*kernel)(const Item*, int), int threads, const Item* items, int64_t count,
            int64_t num_ctas, cudaStream_t stream) {
  if (num_ctas == 0) return;
  LaunchConfig config(dim3(static_cast<unsigned>(num_ctas)), threads, 0, stream);
  config.all_shared();
  config.run(kernel, items, static_cast<int>(count));
}

}  // namespace

int64_t ctas_of(const QuantiseItem& item) { return num_quantise_ctas(item.matrix); }

int64_t ctas_of(const PackItem& item) {
  return packs_nothing(item.to, item.scales) ? 0 : num_pack_ctas(item.rows, item.scales);
}

bool packs_whole_tiles(const WeightView& rows, const TileTarget& to) {
  const int unit = rows_of_tile(to);
  return to.first_row % unit == 0 && rows.rows % unit == 0 && reads_vectors(rows) &&
         (rows.format != WeightFormat::kMxfp8 || reads_scale_words(rows));
}

int64_t ctas_of(const TileItem& item) { return num_tile_ctas(item.rows, item.to); }

void quantise_items(const QuantiseItem* items, int64_t count, int64_t num_ctas,
                    cudaStream_t stream) {
  launch(quantise_items_kernel, kQuantiseThreads, items, count, num_ctas, stream);
}

void pack_items(const PackItem* items, int64_t count, int64_t num_ctas, cudaStream_t stream) {
  launch(pack_items_kernel, kPackWarps * 32, items, count, num_ctas, stream);
}

void pack_tiles(const TileItem* items, int64_t count, int64_t num_ctas, cudaStream_t stream) {
  launch(pack_tiles_kernel, kPackWarps * 32, items, count, num_ctas, stream);
}

void load_pack_kernels() {
  load_kernels(quantise_items_kernel, pack_items_kernel, pack_tiles_kernel);
}

}  // namespace warproll
