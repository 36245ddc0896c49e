// Arenas in page-locked host memory, filled through slots on the device: the same bytes as elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/weights_sync/gpu/device_fill_support.h"
#include "weights_sync/cuda/tile_staging.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;

ArenaDevicePtr host_staged() { return make_cuda_arena_device({.host_staged = true}).value(); }

TEST(HostStagedGpu, every_golden_checkpoint_gives_the_tiles_and_digests_of_the_cpu) {
  SKIP_WITHOUT_GPU();
  const ArenaDevicePtr device = host_staged();
  for (const std::string& name : golden_checkpoints()) {
    for (const bool quantise : {false, true}) {
      SCOPED_TRACE(name + (quantise ? ", quantised" : ""));
      const Golden golden(name, quantise);
      DeviceArena arena(device, golden.layout.total_bytes);
      auto filler = device->make_filler(golden.layout, arena.buffer.span(), nullptr).value();
      expect_filled(golden, arena, fill_from_checkpoint(golden.checkpoint, *filler));
    }
  }
}

// Pieces of a stream in any order: more unfinished pieces than there are slots, so some go straight.
TEST(HostStagedGpu, parts_of_a_stream_in_any_order_give_the_same) {
  SKIP_WITHOUT_GPU();
  constexpr uint64_t kSeed = 23, kPiece = 7000;
  std::mt19937_64 random(kSeed);
  const ArenaDevicePtr device = host_staged();
  for (const char* name : {"qwen3moe-tiny", "qwen3moe-tiny-mxfp8-ct", "qwen3moe-tiny-tied",
                           "qwen3moe-tiny-fp8block-ragged", "qwen3moe-tiny-fused"}) {
    for (const bool shuffled : {false, true}) {
      SCOPED_TRACE(std::string(name) + (shuffled ? ", shuffled" : ""));
      const Golden golden(name, false);
      const Manifest manifest = make_manifest(golden.checkpoint, 1, 16384).value();
      DeviceArena arena(device, golden.layout.total_bytes);
      auto filler = device->make_filler(golden.layout, arena.buffer.span(), &manifest).value();
      StreamOnDevice stream(golden.checkpoint, manifest);
      std::vector<uint64_t> pieces;
      for (uint64_t at = 0; at < stream.bytes.size(); at += kPiece) pieces.push_back(at);
      if (shuffled) std::shuffle(pieces.begin(), pieces.end(), random);
      for (const uint64_t at : pieces) {
        ASSERT_TRUE(stream.put_device_through_slot(*filler, at, kPiece).ok());
      }
      expect_filled(golden, arena, filler->finish());
    }
  }
}

// Slots come back from fills that are given up: the next ones would go straight, or find none at all.
TEST(HostStagedGpu, a_fill_that_is_given_up_gives_its_slots_back) {
  SKIP_WITHOUT_GPU();
  TileSlots slots;
  const Golden golden("qwen3moe-tiny", false);
  const FillPlan plan = make_fill_plan(golden.layout, golden.layout.total_bytes, nullptr).value();
  std::vector<std::byte> arena(golden.layout.total_bytes);
  const CudaStream stream;
  const PlannedTensor& tensor = *std::ranges::find_if(
      plan.tensors, [](const PlannedTensor& t) { return t.tiles.has_value(); });
  const WeightView rows = rows_of(golden.layout.tile_regions[tensor.tiles->region], *tensor.tiles);
  for (uint64_t i = 0; i < 2 * kNumTileSlots; ++i) {
    TileStaging staging(golden.layout, plan, arena, slots);
    for (const TilePart& part : staging.pieces().parts_of(*tensor.tiles, rows)) {
      EXPECT_TRUE(staging.place(part, stream.get(), /*straight=*/false).has_value()) << i;
    }
  }
}

}  // namespace
}  // namespace warproll
