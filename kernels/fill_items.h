// What filling an arena does to tensors that came together: one launch for all of a kind, however many
// and small they are (a checkpoint of MXFP8 experts has tens of thousands of tensors). Each launch reads
// a list in device memory; of the items of a list none may depend on another.
//
//   take_in_items   digest (xxh3.h) and search (not_finite.h) of chunks, in one pass over the bytes
//   quantise_items  matrices to MXFP8 (quantise.h)
//   pack_items      rows to tiles (moe/pack.h), elements or scales
//
// Thread: any, one stream. Errors: CudaError; whoever makes a list checks its items.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/moe/pack.h"
#include "kernels/not_finite.h"
#include "kernels/quantise.h"
#include "kernels/xxh3.h"

namespace warproll {

// A chunk of a tensor: kXxh3ChunkBytes, or the last and shorter one. No hash of kXxh3ShortBytes or less.
struct TakeInItem {
  const std::byte* data = nullptr;  // [bytes]; 16-byte aligned
  std::byte* digest = nullptr;      // [16], canonical; 16-byte aligned
  uint64_t* key = nullptr;          // as FindNotFiniteParams::key; read only with a rule
  uint64_t first_index = 0;         // of its first element in the tensor
  uint32_t bytes = 0;
  NotFiniteRule rule;
};

struct QuantiseItem {
  QuantiseMxfp8Params matrix;
  int64_t first_cta = 0;  // of the launch
};
[[nodiscard]] int64_t ctas_of(const QuantiseMxfp8Params& matrix);

struct PackItem {
  WeightView rows;
  TileTarget to;
  bool scales = false;
  int64_t first_cta = 0;  // of the launch
};
// 0: there is nothing to do.
[[nodiscard]] int64_t ctas_of(const PackItem& item);

// `count` items each; num_ctas: of all of them. A list's first_cta ascend from 0.
void take_in_items(const TakeInItem* items, int64_t count, cudaStream_t stream);
void quantise_items(const QuantiseItem* items, int64_t count, int64_t num_ctas,
                    cudaStream_t stream);
void pack_items(const PackItem* items, int64_t count, int64_t num_ctas, cudaStream_t stream);

}  // namespace warproll
