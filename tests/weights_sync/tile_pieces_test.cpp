// Every golden checkpoint put together piece by piece in slots of any size, against the arena packed at
// once: pack's CPU twins, tensors in any order.
#include "weights_sync/tile_pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tests/weights_sync/device_twin.h"
#include "weights_sync/arena_fill.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;

// One tensor's bytes as they are packed, and its rows into `arena` where they lie there too.
struct Arrived {
  std::vector<std::byte> elements, scales;
  Arrived(const PlannedTensor& tensor, std::span<const std::byte> bytes,
          std::vector<std::byte>& arena) {
    if (tensor.kind == PlannedTensor::Kind::kQuantise) {
      elements.resize(tensor.quantised.elements.bytes);
      scales.resize(tensor.quantised.scales.bytes);
      if (!quantise_mxfp8(tensor.info, bytes, elements, scales).ok()) throw std::logic_error("nan");
      return;
    }
    (tensor.is_scale ? scales : elements).assign(bytes.begin(), bytes.end());
    if (!tensor.as_rows) return;
    std::ranges::copy(bytes, arena.begin() + static_cast<std::ptrdiff_t>(tensor.arena_offset));
  }
};

// Slots of pieces under way, 0xee until written.
class Staging {
 public:
  Staging(const ArenaLayout& layout, const TilePieces& pieces, std::vector<std::byte>& arena)
      : layout_(layout), pieces_(pieces), arena_(arena), done_(pieces.all().size()) {}

  void pack(TilePart part) {
    const TilePiece& piece = pieces_.all()[part.piece];
    if (!piece.fits) {
      part.to_arena.out = arena_.data() + layout_.tile_regions[piece.region].offset_bytes;
      return pack_part(part.rows, part.to_arena);
    }
    std::vector<std::byte>& slot = slots_[part.piece];
    slot.resize(piece.records_bytes + piece.row_scales_bytes, std::byte{0xee});
    ASSERT_EQ(slot.size(), part.to_slot.tiles.bytes());
    part.to_slot.out = slot.data();
    pack_part(part.rows, part.to_slot);
    if (++done_[part.piece] < piece.num_parts) return;
    std::copy_n(slot.begin(), piece.records_bytes, at(piece.records_at));
    std::copy_n(slot.begin() + static_cast<std::ptrdiff_t>(piece.records_bytes),
                piece.row_scales_bytes, at(piece.row_scales_at));
    slots_.erase(part.piece);
  }
  [[nodiscard]] bool all_done() const { return slots_.empty(); }

 private:
  static void pack_part(const WeightView& rows, const TileTarget& to) {
    if (rows.data != nullptr) pack_elements_cpu(rows, to);
    if (rows.scales != nullptr) pack_scales_cpu(rows, to);
  }
  std::vector<std::byte>::iterator at(uint64_t offset) {
    return arena_.begin() + static_cast<std::ptrdiff_t>(offset);
  }
  const ArenaLayout& layout_;
  const TilePieces& pieces_;
  std::vector<std::byte>& arena_;
  std::vector<uint32_t> done_;
  std::map<size_t, std::vector<std::byte>> slots_;
};

TEST(TilePieces, pieces_of_any_size_give_the_arena_that_is_packed_at_once) {
  constexpr uint32_t kSeed = 13;
  std::mt19937 random(kSeed);
  uint64_t whole = 0, cut = 0, too_large = 0;
  for (const std::string& name : golden_checkpoints()) {
    for (const bool quantise : {false, true}) {
      const Checkpoint checkpoint = Checkpoint::open(golden(name)).value();
      const LoadedWeights host = load_checkpoint(checkpoint, model_layout(quantise)).value();
      const ArenaLayout layout =
          device_layout_function(quantise)(checkpoint.files(), checkpoint.tensors()).value();
      const FillPlan plan = make_fill_plan(layout, layout.total_bytes, nullptr).value();
      const std::vector<std::byte> wanted =
          device_arena_twin(config_of(host.files), host.layout, host.arena.span(), layout);
      for (const uint64_t slot_bytes : {100, 3'000, 5'000, 20'000, 1 << 24}) {
        SCOPED_TRACE(name + (quantise ? ", quantised, " : ", ") + std::to_string(slot_bytes));
        const TilePieces pieces(layout, plan, slot_bytes);
        for (const TilePiece& piece : pieces.all()) {
          EXPECT_GT(piece.num_parts, 0u);
          if (piece.fits) {
            EXPECT_LE(piece.records_bytes + piece.row_scales_bytes, slot_bytes);
          }
          too_large += piece.fits ? 0 : 1;
          const TileRegion& region = layout.tile_regions[piece.region];
          (piece.num_tiles * kTileRows == region.rows ? whole : cut) += 1;
        }
        std::vector<std::byte> arena(layout.total_bytes);
        Staging staging(layout, pieces, arena);
        std::vector<size_t> order(checkpoint.tensors().size());
        for (size_t i = 0; i < order.size(); ++i) order[i] = i;
        std::shuffle(order.begin(), order.end(), random);
        for (const size_t i : order) {
          const PlannedTensor& tensor = plan.tensors[plan.index.at(checkpoint.tensors()[i].name)];
          if (tensor.kind == PlannedTensor::Kind::kAlias) continue;
          const Arrived arrived(tensor, checkpoint.bytes(i), arena);
          if (!tensor.tiles) continue;
          WeightView rows = rows_of(layout.tile_regions[tensor.tiles->region], *tensor.tiles);
          rows.data = arrived.elements.empty() ? nullptr : arrived.elements.data();
          rows.scales = arrived.scales.empty() ? nullptr : arrived.scales.data();
          for (const TilePart& part : pieces.parts_of(*tensor.tiles, rows)) staging.pack(part);
        }
        EXPECT_TRUE(staging.all_done());
        EXPECT_TRUE(equal_bytes(arena, wanted));
      }
    }
  }
  EXPECT_GT(whole, 100u);
  EXPECT_GT(cut, 100u);
  EXPECT_GT(too_large, 100u);
}

}  // namespace
}  // namespace warproll
