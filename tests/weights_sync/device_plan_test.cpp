// Where the tensors of every golden checkpoint go in a device's arena: the plan that a device's filler
// follows, followed by pack's CPU twins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kernels/quantise.h"
#include "tests/weights_sync/device_twin.h"
#include "weights_sync/arena_fill.h"
#include "weights_sync/fill_plan.h"
#include "weights_sync/layout_check.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;
using ::testing::HasSubstr;

// Follows the plan for one tensor.
void place(const ArenaLayout& layout, const PlannedTensor& tensor, std::span<const std::byte> bytes,
           std::vector<std::byte>& arena) {
  if (tensor.kind == PlannedTensor::Kind::kAlias) return;
  std::vector<std::byte> elements, scales;
  WeightView rows;
  if (tensor.tiles) rows = rows_of(layout.tile_regions[tensor.tiles->region], *tensor.tiles);
  rows.data = tensor.is_scale ? nullptr : bytes.data();
  rows.scales = tensor.is_scale ? bytes.data() : nullptr;
  if (tensor.kind == PlannedTensor::Kind::kQuantise) {
    elements.resize(tensor.quantised.elements.bytes);
    scales.resize(tensor.quantised.scales.bytes);
    ASSERT_TRUE(quantise_mxfp8(tensor.info, bytes, elements, scales).ok());
    rows.data = elements.data();
    rows.scales = scales.data();
  } else if (tensor.as_rows) {
    std::copy(bytes.begin(), bytes.end(),
              arena.begin() + static_cast<std::ptrdiff_t>(tensor.arena_offset));
  }
  if (!tensor.tiles) return;
  const TileRegion& region = layout.tile_regions[tensor.tiles->region];
  const TileTarget to = {.tiles = tile_matrix(region, nullptr),
                         .out = arena.data() + region.offset_bytes,
                         .gate_up = region.gate_up,
                         .first_matrix = tensor.tiles->first_matrix,
                         .first_row = tensor.tiles->first_row};
  if (rows.data != nullptr) pack_elements_cpu(rows, to);
  if (rows.scales != nullptr) pack_scales_cpu(rows, to);
}

TEST(DevicePlan, tensors_in_any_order_give_the_tiles_of_the_models_matrices) {
  constexpr uint32_t kSeed = 11;
  std::mt19937 random(kSeed);
  for (const std::string& name : golden_checkpoints()) {
    for (const bool quantise : {false, true}) {
      SCOPED_TRACE(name + (quantise ? ", quantised" : ""));
      auto checkpoint = Checkpoint::open(golden(name));
      ASSERT_TRUE(checkpoint.ok());
      auto host = load_checkpoint(*checkpoint, model_layout(quantise));
      ASSERT_TRUE(host.ok()) << host.status().to_string();
      auto layout = device_layout_function(quantise)(checkpoint->files(), checkpoint->tensors());
      ASSERT_TRUE(layout.ok()) << layout.status().to_string();
      auto plan = make_fill_plan(*layout, layout->total_bytes, nullptr);
      ASSERT_TRUE(plan.ok()) << plan.status().to_string();
      EXPECT_TRUE(plan->has_tiles);

      std::vector<std::byte> arena(layout->total_bytes);
      std::vector<size_t> order(checkpoint->tensors().size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      for (const size_t i : order) {
        const size_t planned = plan->index.at(checkpoint->tensors()[i].name);
        // At an even address, as a device's buffers are: a checkpoint's may be odd.
        const auto bytes = checkpoint->bytes(i);
        place(*layout, plan->tensors[planned], std::vector(bytes.begin(), bytes.end()), arena);
      }
      EXPECT_TRUE(equal_bytes(arena, device_arena_twin(config_of(host->files), host->layout,
                                                       host->arena.span(), *layout)));
    }
  }
}

// An arena of `background` filled in any order.
std::vector<std::byte> filled(const Checkpoint& checkpoint, const ArenaLayout& layout,
                              std::byte background, std::mt19937& random) {
  const FillPlan plan = make_fill_plan(layout, layout.total_bytes, nullptr).value();
  std::vector<std::byte> arena(layout.total_bytes, background);
  std::vector<size_t> order(checkpoint.tensors().size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  for (const size_t i : order) {
    const auto bytes = checkpoint.bytes(i);
    place(layout, plan.tensors[plan.index.at(checkpoint.tensors()[i].name)],
          std::vector(bytes.begin(), bytes.end()), arena);
  }
  return arena;
}

// The golden models' own layouts have few gaps or none: everything moved up by an alignment, the second
// extent by two, room left behind the last.
ArenaLayout with_gaps(ArenaLayout layout) {
  uint64_t second = layout.total_bytes;
  for (const ArenaSlot& slot : layout.slots)
    if (slot.offset_bytes > 0) second = std::min(second, slot.offset_bytes);
  for (const TileRegion& region : layout.tile_regions)
    if (region.offset_bytes > 0) second = std::min(second, region.offset_bytes);
  const auto move = [&](uint64_t offset) {
    return offset + (offset >= second ? 2 : 1) * kArenaAlignment;
  };
  for (ArenaSlot& slot : layout.slots) slot.offset_bytes = move(slot.offset_bytes);
  for (TileRegion& region : layout.tile_regions) region.offset_bytes = move(region.offset_bytes);
  layout.total_bytes += 2 * kArenaAlignment + 77;
  return layout;
}

// Two fills over different bytes differ exactly in those that no tensor writes.
TEST(DevicePlan, the_gaps_are_exactly_what_no_tensor_writes) {
  constexpr uint32_t kSeed = 12;
  std::mt19937 random(kSeed);
  uint64_t num_gaps = 0;
  for (const std::string& name : golden_checkpoints()) {
    for (const bool quantise : {false, true}) {
      const Checkpoint checkpoint = Checkpoint::open(golden(name)).value();
      const ArenaLayout made =
          device_layout_function(quantise)(checkpoint.files(), checkpoint.tensors()).value();
      for (const ArenaLayout& layout : {made, with_gaps(made)}) {
        SCOPED_TRACE(name + (quantise ? ", quantised, " : ", ") +
                     std::to_string(layout.total_bytes) + " bytes");
        const auto zeroed = filled(checkpoint, layout, std::byte{0}, random);
        auto stale = filled(checkpoint, layout, std::byte{0xff}, random);
        std::vector<bool> in_gap(layout.total_bytes);
        for (const ArenaGap& gap : arena_gaps(layout)) {
          ++num_gaps;
          ASSERT_GT(gap.bytes, 0u);
          ASSERT_LE(gap.begin + gap.bytes, layout.total_bytes);
          for (uint64_t at = gap.begin; at < gap.begin + gap.bytes; ++at) in_gap[at] = true;
        }
        for (uint64_t at = 0; at < layout.total_bytes; ++at) {
          ASSERT_EQ(zeroed[at] != stale[at], in_gap[at]) << "byte " << at;
        }
        for (const ArenaGap& gap : arena_gaps(layout)) {
          std::fill_n(stale.begin() + static_cast<std::ptrdiff_t>(gap.begin), gap.bytes,
                      std::byte{0});
        }
        EXPECT_TRUE(equal_bytes(stale, zeroed));
      }
    }
  }
  EXPECT_GE(num_gaps, golden_checkpoints().size() * 2 * 3);
}

TEST(DevicePlan, gaps_of_rows_are_what_lies_between_them) {
  const ArenaLayout layout = small_layout();  // 128 bytes at 0, 5 at 256
  const std::vector<ArenaGap> gaps = arena_gaps(layout);
  ASSERT_EQ(gaps.size(), 1u);
  EXPECT_EQ(gaps[0].begin, 128u);
  EXPECT_EQ(gaps[0].bytes, 128u);
  EXPECT_TRUE(arena_gaps({}).empty());
}

TEST(DevicePlan, a_host_arena_refuses_tiles) {
  auto checkpoint = Checkpoint::open(golden("qwen3moe-tiny"));
  ASSERT_TRUE(checkpoint.ok());
  auto layout = device_layout_function()(checkpoint->files(), checkpoint->tensors());
  ASSERT_TRUE(layout.ok());
  std::vector<std::byte> arena(layout->total_bytes);
  EXPECT_THAT(ArenaFiller::create(*layout, arena).status().message(), HasSubstr("has tiles"));
}

TEST(DevicePlan, an_unsound_layout_is_refused) {
  auto checkpoint = Checkpoint::open(golden("qwen3moe-tiny"));
  ASSERT_TRUE(checkpoint.ok());
  const auto good = device_layout_function()(checkpoint->files(), checkpoint->tensors());
  ASSERT_TRUE(good.ok());
  const auto error = [](const ArenaLayout& layout) {
    const auto plan = make_fill_plan(layout, layout.total_bytes, nullptr);
    return plan.ok() ? std::string("no error") : plan.status().message();
  };
  ASSERT_EQ(error(*good), "no error");
  ArenaLayout layout = *good;
  layout.tile_regions[1].offset_bytes = layout.tile_regions[0].offset_bytes;
  EXPECT_THAT(error(layout), HasSubstr("overlaps"));
  layout = *good;
  layout.tile_regions.back().bytes += 1;
  EXPECT_THAT(error(layout), HasSubstr("not what tiles are"));
  layout = *good;
  layout.total_bytes -= 1;
  EXPECT_THAT(error(layout), HasSubstr("leaves the layout"));
  layout = *good;
  const auto q = std::find_if(layout.slots.begin(), layout.slots.end(),
                              [](const ArenaSlot& slot) { return slot.name == "layers.0.q"; });
  ASSERT_NE(q, layout.slots.end());
  q->tile_region = 1000;
  EXPECT_THAT(error(layout), HasSubstr("is in tile region 1000"));
  q->tile_region = 0;
  q->first_row = 8;
  EXPECT_THAT(error(layout), HasSubstr("has rows 8 + 128 of its tiles, wanted 0"));
  layout = *good;
  layout.tile_regions[0].rows -= 16;
  layout.tile_regions[0].bytes = tile_matrix(layout.tile_regions[0], nullptr).bytes();
  EXPECT_THAT(error(layout), HasSubstr("have 256 rows of elements, wanted 240"));
}

}  // namespace
}  // namespace warproll
