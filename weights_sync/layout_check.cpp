#include "weights_sync/layout_check.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/moe/pack.h"

namespace warproll {
namespace {

std::string quoted_slot(const ArenaSlot& slot) { return "slot '" + slot.name + "'"; }

bool has_rows(const ArenaSlot& slot) {
  return slot.form == SlotForm::kRows || slot.form == SlotForm::kRowsAndTiles;
}

// What takes room in the arena: slots that lie as rows, and tile regions.
struct Extent {
  uint64_t begin = 0;
  uint64_t bytes = 0;
  std::string name;
};

// In the order of the arena.
std::vector<Extent> extents_of(const ArenaLayout& layout) {
  std::vector<Extent> extents;
  for (const ArenaSlot& slot : layout.slots) {
    if (has_rows(slot)) extents.push_back({slot.offset_bytes, slot.bytes, quoted_slot(slot)});
  }
  if (layout.tile_regions.empty()) return extents;
  for (const TileRegion& region : layout.tile_regions) {
    extents.push_back({region.offset_bytes, region.bytes, "tiles '" + region.name + "'"});
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::pair(a.begin, a.bytes) < std::pair(b.begin, b.bytes);
  });
  return extents;
}

Status check_extents(const std::vector<Extent>& extents, uint64_t total_bytes) {
  uint64_t filled_to = 0;
  for (const Extent& extent : extents) {
    const std::string got =
        extent.name + " at " + std::to_string(extent.begin) + " + " + std::to_string(extent.bytes);
    if (extent.begin % kArenaAlignment != 0) {
      return invalid_argument(got + " is not aligned, wanted a multiple of " +
                              std::to_string(kArenaAlignment));
    }
    if (extent.begin < filled_to) {
      return invalid_argument(got + " overlaps the slot before it, which ends at " +
                              std::to_string(filled_to));
    }
    if (extent.begin > total_bytes || extent.bytes > total_bytes - extent.begin) {
      return invalid_argument(got + " leaves the layout of " + std::to_string(total_bytes) +
                              " bytes");
    }
    filled_to = extent.begin + extent.bytes;
  }
  return ok_status();
}

// Element slots have all rows of their region, in the order of the slots; so have scale slots where
// the format has scales.
Status check_region_rows(const ArenaLayout& layout) {
  for (const bool scales : {false, true}) {
    std::vector<int32_t> filled_to(layout.tile_regions.size());
    for (const ArenaSlot& slot : layout.slots) {
      if (slot.form == SlotForm::kRows || (slot.form == SlotForm::kTileScales) != scales) continue;
      int32_t& next_row = filled_to[static_cast<size_t>(slot.tile_region)];
      if (slot.first_row != next_row || slot.num_rows < 0) {
        return invalid_argument(quoted_slot(slot) + " has rows " + std::to_string(slot.first_row) +
                                " + " + std::to_string(slot.num_rows) + " of its tiles, wanted " +
                                std::to_string(next_row) + ", where the one before it ends");
      }
      next_row += slot.num_rows;
    }
    for (size_t r = 0; r < filled_to.size(); ++r) {
      const TileRegion& region = layout.tile_regions[r];
      const int32_t wanted = scales && !is_fp8(region.format) ? 0 : region.rows;
      if (filled_to[r] == wanted) continue;
      return invalid_argument("tiles '" + region.name + "' have " + std::to_string(filled_to[r]) +
                              " rows of " + (scales ? "scales" : "elements") + ", wanted " +
                              std::to_string(wanted));
    }
  }
  return ok_status();
}

Status check_region(const TileRegion& region) {
  const bool sound = region.format != WeightFormat::kF32 && region.num_matrices > 0 &&
                     region.rows > 0 && region.rows % kTileRows == 0 && region.cols > 0 &&
                     region.cols % kTileBlock == 0 && region.block_rows > 0 &&
                     region.block_cols > 0;
  if (sound && region.bytes == tile_matrix(region, nullptr).bytes()) return ok_status();
  return invalid_argument("tiles '" + region.name + "' of " + std::to_string(region.num_matrices) +
                          " x [" + std::to_string(region.rows) + ", " +
                          std::to_string(region.cols) + "] in " + std::to_string(region.bytes) +
                          " bytes: not what tiles are");
}

}  // namespace

Status check_layout(const ArenaLayout& layout, uint64_t arena_bytes) {
  if (layout.total_bytes > arena_bytes) {
    return resource_exhausted("the layout wants " + std::to_string(layout.total_bytes) +
                              " bytes, the arena has " + std::to_string(arena_bytes));
  }
  for (const ArenaSlot& slot : layout.slots) {
    const bool in_region = slot.form != SlotForm::kRows;
    if (in_region && static_cast<size_t>(slot.tile_region) >= layout.tile_regions.size()) {
      return invalid_argument(quoted_slot(slot) + " is in tile region " +
                              std::to_string(slot.tile_region) + ", the layout has " +
                              std::to_string(layout.tile_regions.size()));
    }
  }
  for (const TileRegion& region : layout.tile_regions) WARPROLL_TRY(check_region(region));
  WARPROLL_TRY(check_extents(extents_of(layout), layout.total_bytes));
  return layout.tile_regions.empty() ? ok_status() : check_region_rows(layout);
}

std::vector<ArenaGap> arena_gaps(const ArenaLayout& layout) {
  std::vector<ArenaGap> gaps;
  uint64_t filled_to = 0;
  const auto up_to = [&](uint64_t begin) {
    if (begin > filled_to) gaps.push_back({filled_to, begin - filled_to});
  };
  for (const Extent& extent : extents_of(layout)) {
    up_to(extent.begin);
    filled_to = extent.begin + extent.bytes;
  }
  up_to(layout.total_bytes);
  return gaps;
}

}  // namespace warproll
