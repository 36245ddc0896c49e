#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "golden.h"
#include "rollout/model/cuda/device_weights.h"

namespace warproll {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kTinyModels;
using testing::load_model;
using testing::LoadedModel;

const ArenaSlot& slot(const ArenaLayout& layout, const std::string& name) {
  return *std::find_if(layout.slots.begin(), layout.slots.end(),
                       [&](const ArenaSlot& s) { return s.name == name; });
}
ArenaSlot& slot(ArenaLayout& layout, const std::string& name) {
  return const_cast<ArenaSlot&>(slot(std::as_const(layout), name));
}

TEST(DeviceLayout, EveryGoldenModelHasItsViews) {
  for (const std::string& name : kTinyModels) {
    SCOPED_TRACE(name);
    const LoadedModel model = load_model(name);
    const ModelConfig& config = model.config;
    const auto layout = make_device_layout(config, model.loaded.layout);
    ASSERT_TRUE(layout.ok()) << layout.status().to_string();
    alignas(256) static std::byte base[1];  // only addresses are looked at
    const auto weights = bind_device_weights(config, *layout, base);
    ASSERT_TRUE(weights.ok()) << weights.status().to_string();
    EXPECT_EQ(weights->lm_head.num_tiles * kTileRows, config.vocab_size);
    EXPECT_EQ(weights->embedding.rows, config.vocab_size);
    EXPECT_NE(weights->final_norm, nullptr);
    for (size_t l = 0; l < weights->layers.size(); ++l) {
      const DeviceLayerWeights& layer = weights->layers[l];
      EXPECT_EQ(layer.is_moe, config.is_moe_layer[l]);
      EXPECT_EQ(layer.qkv.num_tiles * kTileRows,
                (config.num_heads + 2 * config.num_kv_heads) * config.head_dim);
      EXPECT_EQ(layer.gate_up.num_experts, layer.is_moe ? config.num_experts : 1);
      EXPECT_EQ(layer.gate_up.num_tiles * 8,
                layer.is_moe ? config.moe_intermediate_size : config.intermediate_size);
      EXPECT_EQ(layer.down.cols, layer.gate_up.num_tiles * 8);
      EXPECT_EQ(layer.down.num_tiles * kTileRows, config.hidden_size);
      for (const TileMatrix* tiles : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
        EXPECT_EQ(static_cast<uint64_t>(tiles->data - base) % kArenaAlignment, 0u);
        EXPECT_LE(static_cast<uint64_t>(tiles->data - base) + tiles->bytes(), layout->total_bytes);
      }
    }
  }
}

TEST(DeviceLayout, ATiedEmbeddingLiesThereTwice) {
  const LoadedModel model = load_model("qwen3moe-tiny-tied");
  const auto layout = make_device_layout(model.config, model.loaded.layout);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(slot(*layout, "embed_tokens").form, SlotForm::kRowsAndTiles);
  const TileRegion& tiles = layout->tile_regions[0];
  EXPECT_EQ(tiles.name, "lm_head");
  EXPECT_GE(tiles.offset_bytes, slot(*layout, "embed_tokens").bytes);
}

TEST(DeviceLayout, WhatAGpuCannotHoldIsNamed) {
  const LoadedModel model = load_model("qwen3moe-tiny");
  const auto error = [&](const ArenaLayout& rows) {
    const auto layout = make_device_layout(model.config, rows);
    return layout.ok() ? std::string("no error") : layout.status().message();
  };
  ArenaLayout rows = model.loaded.layout;
  slot(rows, "layers.1.o").dtype = Dtype::kF32;
  EXPECT_THAT(error(rows), AllOf(HasSubstr("layers.1.o"), HasSubstr("F32")));
  rows = model.loaded.layout;
  slot(rows, "layers.1.k").dtype = Dtype::kF16;
  EXPECT_THAT(error(rows), AllOf(HasSubstr("layers.1.k"), HasSubstr("layers.1.qkv")));
  rows = model.loaded.layout;
  slot(rows, "layers.2.router").dtype = Dtype::kF16;
  EXPECT_THAT(error(rows), AllOf(HasSubstr("layers.2.router"), HasSubstr("BF16 or F32")));
  rows = model.loaded.layout;
  slot(rows, "layers.0.q").shape = {124, 64};
  EXPECT_THAT(error(rows), AllOf(HasSubstr("layers.0.q"), HasSubstr("multiples of 8")));
  rows = model.loaded.layout;
  slot(rows, "layers.0.o").shape = {64, 120};
  EXPECT_THAT(error(rows), HasSubstr("columns of 32"));
  rows = model.loaded.layout;
  slot(rows, "layers.0.o").shape = {56, 128};
  EXPECT_THAT(error(rows), HasSubstr("multiple of 16"));
}

TEST(DeviceLayout, BindingNamesWhatIsMissing) {
  const LoadedModel model = load_model("qwen3moe-tiny");
  const auto layout = make_device_layout(model.config, model.loaded.layout);
  ASSERT_TRUE(layout.ok());
  ArenaLayout other = *layout;
  other.tile_regions.pop_back();
  EXPECT_THAT(bind_device_weights(model.config, other, nullptr).status().message(),
              HasSubstr("'lm_head' are missing"));
  EXPECT_THAT(bind_device_weights(model.config, model.loaded.layout, nullptr).status().message(),
              HasSubstr("missing in the layout"));
}

}  // namespace
}  // namespace warproll
