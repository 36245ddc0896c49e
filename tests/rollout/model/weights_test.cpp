#include "rollout/model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "golden.h"

namespace warproll {
namespace {

using testing::golden_path;
using ::testing::HasSubstr;
using testing::load_model;
using testing::LoadedModel;

// Config and tensors of a golden checkpoint, to be changed.
struct Source {
  ModelConfig config;
  std::vector<TensorInfo> tensors;

  explicit Source(const std::string& name) {
    const auto checkpoint = Checkpoint::open(golden_path(name));
    const CheckpointFiles& files = checkpoint->files();
    config = parse_model_config(files.config_json, files.generation_config_json,
                                files.hf_quant_config_json)
                 .value();
    tensors.assign(checkpoint->tensors().begin(), checkpoint->tensors().end());
  }

  TensorInfo& at(const std::string& name) {
    const auto it = std::find_if(tensors.begin(), tensors.end(),
                                 [&](const TensorInfo& t) { return t.name == name; });
    if (it == tensors.end()) throw std::runtime_error("no tensor " + name);
    return *it;
  }
  void remove(const std::string& name) {
    tensors.erase(tensors.begin() + (&at(name) - tensors.data()));
  }
  [[nodiscard]] Result<ArenaLayout> layout(bool quantise = false) const {
    return make_arena_layout(config, tensors, quantise);
  }
};

void expect_refused(const Source& source, const std::vector<std::string>& wanted,
                    bool quantise = false) {
  const auto layout = source.layout(quantise);
  ASSERT_FALSE(layout.ok()) << wanted.front();
  EXPECT_EQ(layout.status().code(), StatusCode::kInvalidArgument);
  for (const std::string& text : wanted) EXPECT_THAT(layout.status().message(), HasSubstr(text));
}

const ArenaSlot* slot(const ArenaLayout& layout, const std::string& name) {
  for (const ArenaSlot& slot : layout.slots) {
    if (slot.name == name) return &slot;
  }
  return nullptr;
}

constexpr char kQ[] = "model.layers.1.self_attn.q_proj.weight";
constexpr char kGate[] = "model.layers.0.mlp.experts.3.gate_proj.weight";

TEST(ArenaLayout, EveryTensorHasOnePlaceAndSlotsAreAlignedAndDisjoint) {
  for (const std::string& name : testing::kTinyModels) {
    const Source source(name);
    const auto layout = source.layout();
    ASSERT_TRUE(layout.ok()) << name << ": " << layout.status().to_string();
    std::vector<std::string> used;
    uint64_t end = 0;
    for (const ArenaSlot& s : layout->slots) {
      EXPECT_EQ(s.offset_bytes % kArenaAlignment, 0u);
      EXPECT_GE(s.offset_bytes, end);
      end = s.offset_bytes + s.bytes;
      uint64_t filled = 0;
      for (const SlotSource& from : s.sources) {
        used.push_back(from.tensor_name);
        EXPECT_EQ(from.slot_offset_bytes, filled) << from.tensor_name;
        uint64_t bytes = dtype_bytes(from.dtype);
        for (const int64_t dim : from.shape) bytes *= static_cast<uint64_t>(dim);
        filled += bytes;
      }
      EXPECT_EQ(filled, s.bytes) << s.name;
    }
    EXPECT_EQ(layout->total_bytes, end);
    std::vector<std::string> wanted;
    for (const TensorInfo& tensor : source.tensors) wanted.push_back(tensor.name);
    EXPECT_THAT(used, ::testing::UnorderedElementsAreArray(wanted)) << name;
  }
}

TEST(ArenaLayout, GateAndUpShareASlotUnlessAScaleBlockWouldStraddleThem) {
  const auto even = Source("qwen3moe-tiny-fp8block").layout();
  ASSERT_NE(slot(*even, "layers.0.experts.gate_up"), nullptr);
  EXPECT_EQ(slot(*even, "layers.0.experts.gate_up")->shape, (std::vector<int64_t>{4, 256, 128}));
  const auto ragged = Source("qwen3moe-tiny-fp8block-ragged").layout();
  EXPECT_EQ(slot(*ragged, "layers.0.experts.gate_up"), nullptr);
  ASSERT_NE(slot(*ragged, "layers.0.experts.up.scale"), nullptr);
  EXPECT_EQ(slot(*ragged, "layers.0.experts.up.scale")->shape, (std::vector<int64_t>{4, 1, 2}));
}

TEST(ArenaLayout, FusedAndPerExpertTensorsFillTheSameArena) {
  const LoadedModel fused = load_model("qwen3moe-tiny-fused");
  Source source("qwen3moe-tiny");
  const auto layout = source.layout();
  ASSERT_EQ(layout->total_bytes, fused.loaded.layout.total_bytes);
  for (size_t i = 0; i < layout->slots.size(); ++i) {
    EXPECT_EQ(layout->slots[i].name, fused.loaded.layout.slots[i].name);
    EXPECT_EQ(layout->slots[i].offset_bytes, fused.loaded.layout.slots[i].offset_bytes);
    EXPECT_EQ(layout->slots[i].shape, fused.loaded.layout.slots[i].shape);
  }
}

TEST(ArenaLayout, QuantisingOnReceiveGivesTheGoldenExportBitForBit) {
  const LoadedModel ours = load_model("qwen3moe-tiny", /*quantise_to_mxfp8=*/true);
  const LoadedModel golden = load_model("qwen3moe-tiny-mxfp8");
  ASSERT_EQ(ours.loaded.layout.total_bytes, golden.loaded.layout.total_bytes);
  EXPECT_EQ(std::memcmp(ours.loaded.arena.data(), golden.loaded.arena.data(),
                        golden.loaded.layout.total_bytes),
            0);
  EXPECT_EQ(ours.loaded.weight_digest, golden.loaded.weight_digest);
  EXPECT_NE(ours.loaded.source_digest, golden.loaded.source_digest);
}

TEST(ArenaLayout, TheTensorsToQuantiseAreThoseOfTheGoldenExport) {
  const Source plain("qwen3moe-tiny"), exported("qwen3moe-tiny-mxfp8");
  std::vector<std::string> wanted;
  for (const TensorInfo& tensor : exported.tensors) {
    if (tensor.dtype == Dtype::kF8E4M3) wanted.push_back(tensor.name);
  }
  const auto names = mxfp8_export_tensors(plain.config, plain.tensors);
  ASSERT_TRUE(names.ok());
  EXPECT_THAT(*names, ::testing::UnorderedElementsAreArray(wanted));
  // What is quantised already stays as it is.
  EXPECT_TRUE(mxfp8_export_tensors(exported.config, exported.tensors)->empty());
}

TEST(ArenaLayout, DenseLayersAreQuantisedToo) {
  const Source source("qwen3moe-tiny-tied");
  const auto names = mxfp8_export_tensors(source.config, source.tensors);
  ASSERT_TRUE(names.ok()) << names.status().to_string();
  EXPECT_THAT(*names, ::testing::Contains("model.layers.0.mlp.down_proj.weight"));
  EXPECT_THAT(*names, ::testing::Not(::testing::Contains("model.embed_tokens.weight")));
}

TEST(ArenaLayout, ColumnsThatMxfp8CannotBlockAreNamed) {
  Source source("qwen3moe-tiny");
  source.config.moe_intermediate_size = 33;
  for (TensorInfo& tensor : source.tensors) {
    for (int64_t& dim : tensor.shape) {
      if (dim == 32 && tensor.name.find("experts") != std::string::npos) dim = 33;
    }
  }
  ASSERT_TRUE(source.layout().ok());
  expect_refused(source, {"experts.0.down_proj.weight", "[64, 33]", "multiples of 32"}, true);
}

TEST(ArenaLayout, ATiedHeadWrittenAllTheSameIsAnAlias) {
  Source source("qwen3moe-tiny-tied");
  EXPECT_TRUE(source.layout()->aliases.empty());
  TensorInfo head = source.at("model.embed_tokens.weight");
  head.name = "lm_head.weight";
  source.tensors.push_back(head);
  const auto layout = source.layout();
  ASSERT_TRUE(layout.ok()) << layout.status().to_string();
  ASSERT_EQ(layout->aliases.size(), 1u);
  EXPECT_EQ(layout->aliases[0].tensor_name, "lm_head.weight");
  EXPECT_EQ(layout->aliases[0].same_as, "model.embed_tokens.weight");
  source.at("lm_head.weight").dtype = Dtype::kF32;
  expect_refused(source, {"lm_head.weight", "F32", "BF16", "tied"});
  source.at("lm_head.weight").shape = {512, 95};
  expect_refused(source, {"lm_head.weight", "[512, 95]", "[512, 96]"});
}

TEST(ArenaLayout, UnknownMissingAndDuplicatedTensorsAreAllNamedAtOnce) {
  Source source("qwen3moe-tiny");
  source.remove(kQ);
  source.tensors.push_back(source.at("model.norm.weight"));
  source.tensors.push_back({"model.layers.9.surprise", Dtype::kBf16, {2}, 4});
  expect_refused(source,
                 {std::string("'") + kQ + "' is missing, wanted shape [128, 64]",
                  "'model.norm.weight' is there twice", "'model.layers.9.surprise' has no place"});
}

TEST(ArenaLayout, ALongListOfProblemsIsCut) {
  Source source("qwen3moe-tiny");
  source.tensors.clear();
  expect_refused(source, {"'model.embed_tokens.weight' is missing", "more problems"});
  EXPECT_LT(source.layout().status().message().size(), 2000u);
}

TEST(ArenaLayout, WrongShapesAndDtypesAreNamedWithBoth) {
  Source source("qwen3moe-tiny");
  source.at(kQ).shape = {64, 128};
  expect_refused(source, {kQ, "[64, 128]", "[128, 64]"});
  source.at(kQ).shape = {128, 64};
  source.at(kQ).dtype = Dtype::kI32;
  expect_refused(source, {kQ, "I32", "BF16"});
  source.at(kQ).dtype = Dtype::kBf16;
  source.at("model.norm.weight").dtype = Dtype::kF32;
  expect_refused(source, {"model.norm.weight", "F32", "wanted BF16"});
  source.at("model.norm.weight").dtype = Dtype::kU8;
  expect_refused(source, {"model.norm.weight", "U8"});
}

TEST(ArenaLayout, DtypesMayDifferBetweenWeightsButNotWithinAStack) {
  Source source("qwen3moe-tiny");
  source.at(kQ).dtype = Dtype::kF16;
  for (TensorInfo& tensor : source.tensors) {
    if (tensor.name.find("layers.2.mlp.experts") != std::string::npos &&
        tensor.name.find("up_proj") != std::string::npos) {
      tensor.dtype = Dtype::kF32;
    }
  }
  const auto mixed = source.layout();
  ASSERT_TRUE(mixed.ok()) << mixed.status().to_string();
  EXPECT_EQ(slot(*mixed, "layers.1.q")->dtype, Dtype::kF16);
  EXPECT_EQ(slot(*mixed, "layers.2.experts.up")->dtype, Dtype::kF32);
  EXPECT_EQ(slot(*mixed, "layers.2.experts.gate")->dtype, Dtype::kBf16);
  source.at(kGate).dtype = Dtype::kF32;
  expect_refused(source, {kGate, "F32", "experts.0.gate_proj", "layers.0.experts.gate_up"});
}

TEST(ArenaLayout, MissingExtraAndMisshapedScalesAreNamed) {
  const std::string q = kQ;
  Source source("qwen3moe-tiny-mxfp8");
  source.remove(q + "_scale_inv");
  expect_refused(source, {q, "F8_E4M3", "without a scale", q + "_scale_inv", q + "_scale'"});

  source = Source("qwen3moe-tiny-mxfp8");
  source.at(q + "_scale_inv").shape = {128, 3};
  expect_refused(source, {q + "_scale_inv", "[128, 3]", "[128, 2]"});

  source = Source("qwen3moe-tiny-mxfp8");
  source.at(q).dtype = Dtype::kBf16;
  expect_refused(source, {q + "_scale_inv", "is a scale", "BF16"});

  source = Source("qwen3moe-tiny-mxfp8");
  source.at(q + "_scale_inv").dtype = Dtype::kI32;
  expect_refused(source, {q + "_scale_inv", "I32", "wanted U8 or F8_E8M0"});

  source = Source("qwen3moe-tiny-mxfp8");
  TensorInfo second = source.at(q + "_scale_inv");
  second.name = q + "_scale";
  source.tensors.push_back(second);
  expect_refused(source, {q, "has both", "wanted one of them"});

  source = Source("qwen3moe-tiny-fp8block-ragged");
  source.config.block_rows = source.config.block_cols = 0;
  expect_refused(source, {"weight_block_size"});
}

TEST(ArenaLayout, FusedBlockFp8WithAScaleAcrossGateAndUpIsRefused) {
  Source source("qwen3moe-tiny-fused");
  source.config.block_rows = source.config.block_cols = 128;
  for (int32_t layer = 0; layer < 3; ++layer) {
    const std::string name = "model.layers." + std::to_string(layer) + ".mlp.experts.gate_up_proj";
    source.at(name).dtype = Dtype::kF8E4M3;
    source.tensors.push_back({name + "_scale_inv", Dtype::kF32, {8, 1, 1}, 32});
  }
  expect_refused(source, {"gate_up_proj", "across gate and up", "multiple of 128"});
}

TEST(BindWeights, RefusesALayoutOfAnotherModel) {
  const LoadedModel model = load_model("qwen3moe-tiny");
  ModelConfig other = model.config;
  other.num_layers = 4;
  other.is_moe_layer.push_back(true);
  const auto missing = bind_weights(other, model.loaded.layout, model.loaded.arena.data());
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.status().message(), HasSubstr("slot 'layers.3.input_norm' is missing"));
  other = model.config;
  other.vocab_size = 513;
  const auto shape = bind_weights(other, model.loaded.layout, model.loaded.arena.data());
  ASSERT_FALSE(shape.ok());
  EXPECT_THAT(shape.status().message(), HasSubstr("'embed_tokens' has shape [512, 64]"));
}

TEST(BindWeights, ATiedHeadIsTheEmbedding) {
  const LoadedModel model = load_model("qwen3moe-tiny-tied");
  EXPECT_EQ(model.weights.lm_head.data, model.weights.embedding.data);
  EXPECT_FALSE(model.weights.layers[0].is_moe);
  EXPECT_TRUE(model.weights.layers[1].is_moe);
}

}  // namespace
}  // namespace warproll
