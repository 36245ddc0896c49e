// make_device_layout: the slots of a host layout keep their order and sources; those of matrices that
// are multiplied get a place in tiles.
#include <string_view>
#include <unordered_map>

#include "kernels/moe/pack.h"
#include "rollout/model/cuda/device_weights.h"
#include "rollout/model/tensor_table.h"

namespace warproll {
namespace {

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Which tiles a slot belongs to. q, k, v and gate, up are stacked in this order, as they come.
struct TilePlace {
  std::string region;  // empty: rows only
  bool gate_up = false;
  bool also_rows = false;
};

TilePlace tile_place(const std::string& slot, bool tied) {
  const size_t dot = slot.rfind('.');
  const std::string prefix = slot.substr(0, dot == std::string::npos ? 0 : dot + 1);
  const std::string last = slot.substr(prefix.size());
  if (last == "q" || last == "k" || last == "v") return {.region = prefix + "qkv"};
  if (last == "o" || last == "down" || slot == "lm_head") return {.region = slot};
  if (last == "gate_up" || last == "gate" || last == "up") {
    return {.region = prefix + "gate_up", .gate_up = true};
  }
  if (slot == "embed_tokens" && tied) return {.region = "lm_head", .also_rows = true};
  return {};
}

class DeviceLayout {
 public:
  DeviceLayout(const ModelConfig& config, const ArenaLayout& rows) : config_(config) {
    layout_.slots = rows.slots;
    layout_.aliases = rows.aliases;
    for (const ArenaSlot& slot : layout_.slots) by_name_.emplace(slot.name, &slot);
  }

  Result<ArenaLayout> make() {
    for (ArenaSlot& slot : layout_.slots) {
      if (ends_with(slot.name, ".scale")) continue;
      const TilePlace place = tile_place(slot.name, config_.tie_word_embeddings);
      if (place.region.empty() || place.also_rows) WARPROLL_TRY(check_rows(slot));
      if (!place.region.empty()) WARPROLL_TRY(add_tiles(slot, place));
    }
    for (TileRegion& region : layout_.tile_regions) WARPROLL_TRY(finish(region));
    for (ArenaSlot& slot : layout_.slots) {
      if (ends_with(slot.name, ".scale")) WARPROLL_TRY(fold_scales(slot));
    }
    give_offsets();
    return std::move(layout_);
  }

 private:
  // What lies as rows is read as it is: norms, router, embedding.
  Status check_rows(const ArenaSlot& slot) const {
    const bool router = ends_with(slot.name, ".router");
    if (slot.dtype == Dtype::kBf16 || slot.dtype == Dtype::kF32) return ok_status();
    if (slot.dtype == Dtype::kF16 && !router) return ok_status();
    return invalid_argument("slot '" + slot.name + "' is " + std::string(to_string(slot.dtype)) +
                            ", a GPU wants " + (router ? "BF16 or F32" : "BF16, F16 or F32"));
  }

  Result<TileRegion> region_of(const ArenaSlot& slot, const TilePlace& place) const {
    TileRegion region;
    region.name = place.region;
    region.gate_up = place.gate_up;
    const size_t rank = slot.shape.size();
    region.num_matrices = rank == 3 ? static_cast<int32_t>(slot.shape[0]) : 1;
    region.rows = static_cast<int32_t>(slot.shape[rank - 2]);
    region.cols = static_cast<int32_t>(slot.shape[rank - 1]);
    if (slot.dtype == Dtype::kBf16 || slot.dtype == Dtype::kF16) {
      region.format = slot.dtype == Dtype::kBf16 ? WeightFormat::kBf16 : WeightFormat::kF16;
      return region;
    }
    const auto scales = by_name_.find(slot.name + ".scale");
    if (slot.dtype != Dtype::kF8E4M3 || scales == by_name_.end()) {
      return invalid_argument("slot '" + slot.name + "' is " + std::string(to_string(slot.dtype)) +
                              ", a GPU wants BF16, F16, MXFP8 or block FP8");
    }
    region.scale_dtype = scales->second->dtype;
    region.format =
        region.scale_dtype == Dtype::kF8E8M0 ? WeightFormat::kMxfp8 : WeightFormat::kFp8Block;
    if (region.format == WeightFormat::kMxfp8) return region;
    region.block_rows = config_.block_rows;
    region.block_cols = config_.block_cols;
    if (region.block_rows > 0 && region.block_rows % 8 == 0 && region.block_cols > 0 &&
        region.block_cols % 32 == 0) {
      return region;
    }
    return invalid_argument(
        "slot '" + slot.name + "' has FP8 blocks of [" + std::to_string(region.block_rows) + ", " +
        std::to_string(region.block_cols) + "], a GPU wants multiples of 8 and 32");
  }

  Status add_tiles(ArenaSlot& slot, const TilePlace& place) {
    WARPROLL_TRY_ASSIGN(wanted, region_of(slot, place));
    if (wanted.rows % 8 != 0 || wanted.cols % 32 != 0) {
      return invalid_argument("slot '" + slot.name + "' has shape " + shape_text(slot.shape) +
                              ", a GPU wants rows in multiples of 8, columns of 32");
    }
    slot.num_rows = wanted.rows;
    slot.form = place.also_rows ? SlotForm::kRowsAndTiles : SlotForm::kTiles;
    std::vector<TileRegion>& regions = layout_.tile_regions;
    if (regions.empty() || regions.back().name != place.region) {
      slot.tile_region = static_cast<int32_t>(regions.size());
      regions.push_back(std::move(wanted));
      return ok_status();
    }
    TileRegion& region = regions.back();
    if (region.format != wanted.format || region.scale_dtype != wanted.scale_dtype ||
        region.num_matrices != wanted.num_matrices || region.cols != wanted.cols) {
      return invalid_argument("slot '" + slot.name + "' " + shape_text(slot.shape) + " " +
                              std::string(to_string(slot.dtype)) +
                              " has another format than the slots before it, a GPU wants one for "
                              "all of '" +
                              region.name + "'");
    }
    slot.tile_region = static_cast<int32_t>(regions.size()) - 1;
    slot.first_row = region.rows;
    region.rows += wanted.rows;
    return ok_status();
  }

  static Status finish(TileRegion& region) {
    if (region.rows % 16 != 0) {
      return invalid_argument("'" + region.name + "' has " + std::to_string(region.rows) +
                              " rows, a GPU wants a multiple of 16");
    }
    region.bytes = tile_matrix(region, nullptr).bytes();
    return ok_status();
  }

  Status fold_scales(ArenaSlot& slot) const {
    const auto elements = by_name_.find(slot.name.substr(0, slot.name.size() - 6));
    if (elements == by_name_.end() || elements->second->form != SlotForm::kTiles) {
      return invalid_argument("slot '" + slot.name + "' has no elements in tiles");
    }
    slot.form = SlotForm::kTileScales;
    slot.tile_region = elements->second->tile_region;
    slot.first_row = elements->second->first_row;
    slot.num_rows = elements->second->num_rows;
    return ok_status();
  }

  void give_offsets() {
    uint64_t end = 0;
    const auto take = [&end](uint64_t bytes) {
      const uint64_t at = align_to_arena(end);
      end = at + bytes;
      return at;
    };
    int32_t next_region = 0;
    for (ArenaSlot& slot : layout_.slots) {
      slot.offset_bytes = 0;
      if (slot.form == SlotForm::kRows || slot.form == SlotForm::kRowsAndTiles) {
        slot.offset_bytes = take(slot.bytes);
      }
      if (slot.tile_region != next_region) continue;
      TileRegion& region = layout_.tile_regions[static_cast<size_t>(next_region++)];
      region.offset_bytes = take(region.bytes);
    }
    layout_.total_bytes = end;
  }

  const ModelConfig& config_;
  ArenaLayout layout_;
  std::unordered_map<std::string, const ArenaSlot*> by_name_;
};

}  // namespace

Result<ArenaLayout> make_device_layout(const ModelConfig& config, const ArenaLayout& rows) {
  return DeviceLayout(config, rows).make();
}

}  // namespace warproll
