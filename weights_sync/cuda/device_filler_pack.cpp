// DeviceFiller: what becomes of a tensor whose digest is under way: quantised, packed into tiles.
#include <algorithm>

#include "kernels/moe/pack.h"
#include "weights_sync/cuda/device_filler.h"

namespace warproll {

Result<std::byte*> DeviceFiller::scratch(uint64_t bytes, Work& work, cudaStream_t stream) {
  const uint64_t size = align_to_arena(bytes);
  if (work.scratch == nullptr || work.scratch_used + size > work.scratch->memory.size()) {
    WARPROLL_TRY_ASSIGN(buffer, parts_.pool->take(std::max(size, work.scratch_bytes), stream));
    work.buffers.push_back(buffer);
    work.scratch = buffer;
    work.scratch_used = 0;
  }
  std::byte* const at = work.scratch->memory.data() + work.scratch_used;
  work.scratch_used += size;
  work.total_scratch_bytes += size;
  return at;
}

Status DeviceFiller::quantise(size_t index, const std::byte* data, Work& work) {
  const PlannedTensor& tensor = ledger_.tensor(index);
  const Arrival& arrival = arrivals_[index];
  const uint64_t elements_bytes = tensor.quantised.elements.bytes;
  const uint64_t scales_bytes = tensor.quantised.scales.bytes;
  WARPROLL_TRY_ASSIGN(elements,
                      scratch(align_to_arena(elements_bytes) + scales_bytes, work, arrival.stream));
  std::byte* const scales = elements + align_to_arena(elements_bytes);
  const int64_t cols = tensor.info.shape.back();
  work.batch.quantise({.source = data,
                       .source_dtype = tensor.info.dtype,
                       .rows = static_cast<int64_t>(elements_bytes) / cols,
                       .cols = cols,
                       .elements = reinterpret_cast<uint8_t*>(elements),
                       .scales = reinterpret_cast<uint8_t*>(scales)});
  FillBatch& batch = work.batch;
  digests_->add(arrival.digest + 1, elements, {}, nullptr, batch.quantised, batch);
  digests_->add(arrival.digest + 2, scales, {}, nullptr, batch.quantised, batch);
  if (tensor.tiles) {
    pack(index, elements, scales, work);
    return ok_status();
  }
  work.batch.copy(parts_.arena.data() + tensor.arena_offset, elements, elements_bytes);
  work.batch.copy(parts_.arena.data() + tensor.scales_arena_offset, scales, scales_bytes);
  return ok_status();
}

void DeviceFiller::pack(size_t index, const std::byte* elements, const std::byte* scales,
                        Work& work) {
  const PlannedTiles& tiles = *ledger_.tensor(index).tiles;
  const TileRegion& region = parts_.layout->tile_regions[tiles.region];
  WeightView rows = rows_of(region, tiles);
  rows.data = elements;
  rows.scales = scales;
  if (staging_) return pack_pieces(index, rows, work);
  const TileTarget to = {.tiles = tile_matrix(region, nullptr),
                         .out = parts_.arena.data() + region.offset_bytes,
                         .gate_up = region.gate_up,
                         .first_matrix = tiles.first_matrix,
                         .first_row = tiles.first_row};
  work.batch.pack(rows, to);
}

void DeviceFiller::pack_pieces(size_t index, const WeightView& rows, Work& work) {
  const cudaStream_t stream = arrivals_[index].stream;
  for (const TilePart& part : staging_->pieces().parts_of(*ledger_.tensor(index).tiles, rows)) {
    auto to = staging_->place(part, stream, /*straight=*/false);
    if (!to) {
      launch_batch(work, stream);  // pieces that it completes let go of their slots
      to = staging_->place(part, stream, /*straight=*/true);
    }
    work.batch.pack(part.rows, *to);
    work.pieces.push_back(part.piece);
  }
}

}  // namespace warproll
