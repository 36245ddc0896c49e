// What filling an arena does to tensors that came together: one launch for all of a kind, however many
// and small they are (a checkpoint of MXFP8 experts has tens of thousands of tensors). Each launch reads
// a list in device memory; of the items of a list none may depend on another.
//
//   take_in_items   one pass over the bytes of chunks: the sums of their digests (xxh3.h), and the search
//                   for what must not be there (not_finite.h); quantises them too where that is asked for
//   digest_items    the digests from those sums
//   quantise_items  matrices to MXFP8 (quantise.h)
//   pack_items      rows to tiles (moe/pack.h), elements or scales
//   pack_tiles      all rows of tiles, and their scales
//
// They run beside a decode step, whose kernels want an SM's whole shared memory: so they have none of it
// but a few words, their CTAs are short, and an SM keeps its split of L1 for them. Only a digest is
// long, 1,024 scrambles in a row: digest_items() has a CTA for many.
//
// Thread: any, one stream. Errors: CudaError; whoever makes a list checks its items.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

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
  uint64_t* sums = nullptr;  // [sums_bytes_of(bytes) / 8], from take_in_items to digest_items
  uint64_t* key = nullptr;   // as FindNotFiniteParams::key; read only with a rule
  uint64_t first_index = 0;  // of its first element in the tensor
  int64_t first_cta = 0;     // of the launch of take_in_items
  uint32_t bytes = 0;
  NotFiniteRule rule;
  // Not null: the chunk becomes MXFP8 in the same pass, as quantise_items would make it. Of BF16, and searched as
  // that; rows are whole blocks of 32.
  uint8_t* elements = nullptr;  // [bytes / 2]; 8-byte aligned
  uint8_t* scales = nullptr;    // [bytes / 64]
};
[[nodiscard]] uint64_t sums_bytes_of(const TakeInItem& item);
[[nodiscard]] int64_t ctas_of(const TakeInItem& item);

struct QuantiseItem {
  QuantiseMxfp8Params matrix;
  int64_t first_cta = 0;  // of the launch
};
[[nodiscard]] int64_t ctas_of(const QuantiseItem& item);

struct PackItem {
  WeightView rows;
  TileTarget to;
  bool scales = false;
  int64_t first_cta = 0;  // of the launch
};
// 0: there is nothing to do.
[[nodiscard]] int64_t ctas_of(const PackItem& item);

// What pack_items needs up to four items for, with elements and (of FP8) scales in one; packs_whole_tiles()
// says of which rows. Where it can be had it is the one to take: a half tile's bytes are 8 (or 4) of 16.
struct TileItem {
  WeightView rows;  // of a gate_up target: gate's, whose rows are those of `up` too
  WeightView up;    // else not read
  TileTarget to;    // of `rows`
  int64_t first_cta = 0;
};
[[nodiscard]] bool packs_whole_tiles(const WeightView& rows, const TileTarget& to);
[[nodiscard]] int64_t ctas_of(const TileItem& item);

// The items, or `count` of them, in device memory; num_ctas: of all of them. A launch's first_cta ascend
// from 0.
void take_in_items(std::span<const TakeInItem> items, int64_t num_ctas, cudaStream_t stream);
void digest_items(std::span<const TakeInItem> items, cudaStream_t stream);
void quantise_items(const QuantiseItem* items, int64_t count, int64_t num_ctas,
                    cudaStream_t stream);
void pack_items(const PackItem* items, int64_t count, int64_t num_ctas, cudaStream_t stream);
void pack_tiles(const TileItem* items, int64_t count, int64_t num_ctas, cudaStream_t stream);

// All of the above, to the calling thread's device: else the first of a kind waits for what runs there.
void load_take_in_kernels();
void load_pack_kernels();

}  // namespace warproll
