#include "weights_sync/fill_plan.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "weights_sync/layout_check.h"
#include "weights_sync/tensor_check.h"
#include "weights_sync/tensor_scan.h"

namespace warproll {
namespace {

// Bytes [begin, begin + bytes) of a slot and who writes them.
struct Region {
  uint64_t begin = 0;
  uint64_t bytes = 0;
  std::string tensor_name;
};
using SlotRegions = std::vector<std::vector<Region>>;  // [slots]

std::string quoted_slot(const ArenaSlot& slot) { return "slot '" + slot.name + "'"; }

bool has_rows(const ArenaSlot& slot) {
  return slot.form == SlotForm::kRows || slot.form == SlotForm::kRowsAndTiles;
}

// Rows [first, first + count) of a stack of matrices: a run within one, or whole ones.
struct RowRun {
  int64_t first_matrix = 0, num_matrices = 0, first_row = 0, rows = 0;
};
std::optional<RowRun> row_run(uint64_t begin, uint64_t bytes, uint64_t row_bytes,
                              int64_t matrix_rows) {
  if (begin % row_bytes != 0 || bytes % row_bytes != 0 || matrix_rows == 0) return std::nullopt;
  const auto first = static_cast<int64_t>(begin / row_bytes);
  const auto count = static_cast<int64_t>(bytes / row_bytes);
  if (first % matrix_rows == 0 && count % matrix_rows == 0) {
    return RowRun{first / matrix_rows, count / matrix_rows, 0, matrix_rows};
  }
  if (first % matrix_rows + count > matrix_rows) return std::nullopt;
  return RowRun{first / matrix_rows, 1, first % matrix_rows, count};
}

// Where bytes [begin, + bytes) of the rows of `slot` (elements or scales) go in its tiles.
Result<PlannedTiles> plan_tiles(const ArenaLayout& layout, const ArenaSlot& slot, uint64_t begin,
                                uint64_t bytes, const std::string& tensor_name) {
  const TileRegion& region = layout.tile_regions[static_cast<size_t>(slot.tile_region)];
  const auto refuse = [&] {
    return invalid_argument(quoted_slot(slot) + ": tensor '" + tensor_name + "' at byte " +
                            std::to_string(begin) + " + " + std::to_string(bytes) +
                            ", wanted rows of one matrix in multiples of 8, or whole matrices");
  };
  // A scale row of block FP8 stands for block_rows rows; the last one of a matrix for fewer.
  const bool blocks =
      slot.form == SlotForm::kTileScales && region.format == WeightFormat::kFp8Block;
  const int64_t unit = blocks ? region.block_rows : 1;
  const int64_t units = unit < 1 ? 0 : (slot.num_rows + unit - 1) / unit;  // of a matrix
  const auto all_units = static_cast<uint64_t>(units * region.num_matrices);
  if (all_units == 0 || slot.bytes == 0 || slot.bytes % all_units != 0) return refuse();
  auto run = row_run(begin, bytes, slot.bytes / all_units, units);
  if (!run) return refuse();
  run->first_row *= unit;
  run->rows = std::min(run->rows * unit, slot.num_rows - run->first_row);
  PlannedTiles tiles;
  tiles.region = static_cast<size_t>(slot.tile_region);
  tiles.first_matrix = static_cast<int32_t>(run->first_matrix);
  tiles.num_matrices = static_cast<int32_t>(run->num_matrices);
  tiles.first_row = slot.first_row + static_cast<int32_t>(run->first_row);
  tiles.rows = static_cast<int32_t>(run->rows);
  const bool fits = run->rows % 8 == 0 && run->first_row % 8 == 0 &&
                    slot.num_rows - run->first_row >= run->rows &&
                    slot.first_row + int64_t{slot.num_rows} <= region.rows &&
                    run->first_matrix + run->num_matrices <= region.num_matrices;
  if (!fits) return refuse();
  return tiles;
}

Status check_tiling(const ArenaSlot& slot, std::vector<Region>& regions) {
  std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) {
    return std::pair(a.begin, a.bytes) < std::pair(b.begin, b.bytes);
  });
  uint64_t filled_to = 0;
  for (const Region& region : regions) {
    if (region.begin != filled_to) {
      return invalid_argument(quoted_slot(slot) + ": tensor '" + region.tensor_name +
                              "' starts at byte " + std::to_string(region.begin) + ", wanted " +
                              std::to_string(filled_to) + ", where the one before it ends");
    }
    if (region.bytes > slot.bytes - filled_to) {
      return invalid_argument(quoted_slot(slot) + ": tensor '" + region.tensor_name + "' has " +
                              std::to_string(region.bytes) + " bytes for byte " +
                              std::to_string(region.begin) + ", but the slot has only " +
                              std::to_string(slot.bytes));
    }
    filled_to += region.bytes;
  }
  if (filled_to == slot.bytes) return ok_status();
  return invalid_argument(quoted_slot(slot) + " is filled to byte " + std::to_string(filled_to) +
                          ", wanted " + std::to_string(slot.bytes));
}

Status add_to_index(FillPlan& plan, const std::string& name) {
  if (plan.index.emplace(name, plan.tensors.size()).second) return ok_status();
  return invalid_argument("tensor '" + name + "' is twice in the layout, wanted once");
}

Status plan_source(const ArenaLayout& layout, size_t slot_index, const SlotSource& source,
                   FillPlan& plan, SlotRegions& regions) {
  const ArenaSlot& slot = layout.slots[slot_index];
  WARPROLL_TRY(add_to_index(plan, source.tensor_name));
  PlannedTensor tensor;
  WARPROLL_TRY_ASSIGN(bytes, checked_tensor_bytes(source.dtype, source.shape));
  tensor.info = {source.tensor_name, source.dtype, source.shape, bytes};
  tensor.arena_offset = slot.offset_bytes + source.slot_offset_bytes;
  tensor.as_rows = has_rows(slot);
  tensor.is_scale = slot.form == SlotForm::kTileScales;
  plan.has_tiles |= slot.form != SlotForm::kRows;
  if (source.transform == FillTransform::kCopy) {
    if (slot.form != SlotForm::kRows) {
      WARPROLL_TRY_ASSIGN(
          tiles, plan_tiles(layout, slot, source.slot_offset_bytes, bytes, source.tensor_name));
      tensor.tiles = tiles;
    }
    // A U8 scale tensor that the model reads as E8M0 is scanned as such, whatever its name.
    tensor.scan_as = source.dtype == Dtype::kU8 && slot.dtype == Dtype::kF8E8M0
                         ? Dtype::kF8E8M0
                         : scan_dtype(tensor.info);
    regions[slot_index].push_back({source.slot_offset_bytes, bytes, source.tensor_name});
    plan.tensors.push_back(std::move(tensor));
    return ok_status();
  }
  const auto scale_slot = static_cast<size_t>(source.scale_slot);
  if (source.scale_slot < 0 || scale_slot >= layout.slots.size()) {
    return invalid_argument("tensor '" + source.tensor_name + "': scale slot is " +
                            std::to_string(source.scale_slot) + ", wanted 0 to " +
                            std::to_string(layout.slots.size()) + " - 1");
  }
  WARPROLL_TRY_ASSIGN(quantised, plan_quantise_mxfp8(tensor.info));
  tensor.kind = PlannedTensor::Kind::kQuantise;
  tensor.scan_as = source.dtype;
  if (slot.form != SlotForm::kRows) {
    WARPROLL_TRY_ASSIGN(tiles, plan_tiles(layout, slot, source.slot_offset_bytes,
                                          quantised.elements.bytes, source.tensor_name));
    tensor.tiles = tiles;
  }
  tensor.scales_arena_offset = layout.slots[scale_slot].offset_bytes + source.scale_offset_bytes;
  regions[slot_index].push_back(
      {source.slot_offset_bytes, quantised.elements.bytes, source.tensor_name});
  regions[scale_slot].push_back(
      {source.scale_offset_bytes, quantised.scales.bytes, quantised.scales.name});
  tensor.quantised = std::move(quantised);
  plan.quantises = true;
  plan.tensors.push_back(std::move(tensor));
  return ok_status();
}

Status plan_alias(const AliasTensor& alias, FillPlan& plan) {
  const auto original = plan.index.find(alias.same_as);
  const bool copied = original != plan.index.end() &&
                      plan.tensors[original->second].kind == PlannedTensor::Kind::kCopy;
  if (!copied) {
    return invalid_argument("alias tensor '" + alias.tensor_name + "' is the same as '" +
                            alias.same_as + "', wanted a tensor that is copied into a slot");
  }
  PlannedTensor tensor = plan.tensors[original->second];
  WARPROLL_TRY(add_to_index(plan, alias.tensor_name));
  tensor.info.name = alias.tensor_name;
  tensor.kind = PlannedTensor::Kind::kAlias;
  tensor.same_as = original->second;
  plan.tensors.push_back(std::move(tensor));
  return ok_status();
}

Status apply_manifest(const Manifest& manifest, FillPlan& plan) {
  if (plan.quantises && manifest.quantise == QuantiseRecipe::kNone) {
    return invalid_argument("the layout quantises, but the manifest's recipe is none");
  }
  for (const ManifestEntry& entry : manifest.entries) {
    const auto found = plan.index.find(entry.tensor.name);
    if (found == plan.index.end()) {
      return invalid_argument("manifest tensor '" + printable(entry.tensor.name) +
                              "' has no place in the layout");
    }
    PlannedTensor& tensor = plan.tensors[found->second];
    if (entry.tensor.dtype != tensor.info.dtype || entry.tensor.shape != tensor.info.shape) {
      return invalid_argument("manifest tensor '" + entry.tensor.name + "' is " +
                              std::string(to_string(entry.tensor.dtype)) + " " +
                              shape_to_string(entry.tensor.shape) + ", the layout wants " +
                              std::string(to_string(tensor.info.dtype)) + " " +
                              shape_to_string(tensor.info.shape));
    }
    if (tensor.expected) {
      return invalid_argument("manifest tensor '" + entry.tensor.name + "' is listed twice");
    }
    tensor.expected = entry.digest;
  }
  for (const PlannedTensor& tensor : plan.tensors) {
    if (!tensor.expected) {
      return invalid_argument("tensor '" + tensor.info.name +
                              "' of the layout is not in the manifest");
    }
  }
  return ok_status();
}

}  // namespace

Result<FillPlan> make_fill_plan(const ArenaLayout& layout, uint64_t arena_bytes,
                                const Manifest* manifest) {
  WARPROLL_TRY(check_layout(layout, arena_bytes));
  FillPlan plan;
  SlotRegions regions(layout.slots.size());
  for (size_t s = 0; s < layout.slots.size(); ++s) {
    for (const SlotSource& source : layout.slots[s].sources) {
      WARPROLL_TRY(plan_source(layout, s, source, plan, regions));
    }
  }
  for (size_t s = 0; s < layout.slots.size(); ++s) {
    WARPROLL_TRY(check_tiling(layout.slots[s], regions[s]));
  }
  for (const AliasTensor& alias : layout.aliases) WARPROLL_TRY(plan_alias(alias, plan));
  if (manifest != nullptr) WARPROLL_TRY(apply_manifest(*manifest, plan));
  return plan;
}

WeightView rows_of(const TileRegion& region, const PlannedTiles& tiles) {
  WeightView view;
  view.format = region.format;
  view.scale_dtype = region.scale_dtype;
  view.num_matrices = tiles.num_matrices;
  view.rows = tiles.rows;
  view.cols = region.cols;
  view.block_rows = region.block_rows;
  view.block_cols = region.block_cols;
  const auto rows = static_cast<uint64_t>(view.rows), cols = static_cast<uint64_t>(view.cols);
  const bool wide = region.format == WeightFormat::kBf16 || region.format == WeightFormat::kF16;
  const auto block_rows = static_cast<uint64_t>(view.block_rows);
  const auto block_cols = static_cast<uint64_t>(view.block_cols);
  view.matrix_stride_bytes = rows * cols * (wide ? 2 : 1);
  view.scale_stride_bytes = (rows + block_rows - 1) / block_rows *
                            ((cols + block_cols - 1) / block_cols) *
                            dtype_bytes(region.scale_dtype);
  return view;
}

}  // namespace warproll
