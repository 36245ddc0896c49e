#include "weights_sync/packed_arena.h"

#include <string>
#include <string_view>
#include <vector>

#include "weights_sync/digest.h"
#include "weights_sync/weight_arenas.h"

namespace warproll {
namespace {

// Fields one after the other, none of which can be taken for another's.
class Fields {
 public:
  void add(std::string_view text) {
    add(static_cast<uint64_t>(text.size()));
    bytes_.append(text);
  }
  void add(uint64_t value) {
    for (int i = 0; i < 8; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i)));
  }
  void add(const std::vector<int64_t>& shape) {
    add(static_cast<uint64_t>(shape.size()));
    for (const int64_t dimension : shape) add(static_cast<uint64_t>(dimension));
  }
  [[nodiscard]] Digest digest() const { return xxh3_128(std::as_bytes(std::span(bytes_))); }

 private:
  std::string bytes_;
};

void add_source(Fields& fields, const SlotSource& source) {
  fields.add(source.tensor_name);
  fields.add(to_string(source.dtype));
  fields.add(source.shape);
  fields.add(static_cast<uint64_t>(source.transform));
  fields.add(source.slot_offset_bytes);
  fields.add(static_cast<uint64_t>(source.scale_slot));
  fields.add(source.scale_offset_bytes);
}

void add_slot(Fields& fields, const ArenaSlot& slot) {
  fields.add(slot.name);
  fields.add(to_string(slot.dtype));
  fields.add(slot.shape);
  fields.add(slot.offset_bytes);
  fields.add(slot.bytes);
  fields.add(static_cast<uint64_t>(slot.form));
  fields.add(static_cast<uint64_t>(slot.tile_region));
  fields.add(static_cast<uint64_t>(slot.first_row));
  fields.add(static_cast<uint64_t>(slot.num_rows));
  fields.add(static_cast<uint64_t>(slot.sources.size()));
  for (const SlotSource& source : slot.sources) add_source(fields, source);
}

void add_region(Fields& fields, const TileRegion& region) {
  fields.add(region.name);
  fields.add(static_cast<uint64_t>(region.format));
  fields.add(static_cast<uint64_t>(region.gate_up));
  for (const int32_t number :
       {region.num_matrices, region.rows, region.cols, region.block_rows, region.block_cols}) {
    fields.add(static_cast<uint64_t>(number));
  }
  fields.add(to_string(region.scale_dtype));
  fields.add(region.offset_bytes);
  fields.add(region.bytes);
}

}  // namespace

Digest layout_key(const ArenaLayout& layout) {
  Fields fields;
  fields.add(
      std::string_view("warproll arena 1"));  // and what tiles look like (kernels/moe/tiles.h)
  fields.add(layout.total_bytes);
  fields.add(static_cast<uint64_t>(layout.slots.size()));
  for (const ArenaSlot& slot : layout.slots) add_slot(fields, slot);
  fields.add(static_cast<uint64_t>(layout.aliases.size()));
  for (const AliasTensor& alias : layout.aliases) {
    fields.add(alias.tensor_name);
    fields.add(alias.same_as);
  }
  fields.add(static_cast<uint64_t>(layout.tile_regions.size()));
  for (const TileRegion& region : layout.tile_regions) add_region(fields, region);
  return fields.digest();
}

PackedArena packed_arena_of(const StagedWeights& weights) {
  WARPROLL_CHECK(weights.device != nullptr, "layout_digest is not that of an arena's bytes");
  return {layout_key(weights.layout), weights.layout.total_bytes, weights.layout_digest};
}

Status check_packed_arena(const PackedArena& packed, const ArenaLayout& layout) {
  if (packed.bytes != layout.total_bytes) {
    return invalid_argument("packed arena: " + std::to_string(packed.bytes) +
                            " bytes, this worker's layout has " +
                            std::to_string(layout.total_bytes));
  }
  const Digest mine = layout_key(layout);
  if (packed.layout == mine) return ok_status();
  return invalid_argument(
      "packed arena: its layout is " + to_hex(packed.layout) + ", this worker's " + to_hex(mine) +
      ": the trainer packs for another kind of worker or another version of it");
}

}  // namespace warproll
