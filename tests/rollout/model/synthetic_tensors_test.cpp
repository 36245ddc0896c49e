#include "rollout/model/synthetic_tensors.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "golden.h"
#include "rollout/model/cuda/device_weights.h"

namespace warproll {
namespace {

using testing::golden_path;
using testing::read_file;

ModelConfig config_at(const std::string& path) {
  return parse_model_config(read_file(path), "", "").value();
}

TEST(SyntheticTensors, AreThoseOfTheGoldenCheckpoints) {
  const ModelConfig config = config_at(golden_path("qwen3moe-tiny") + "/config.json");
  const auto checkpoint = Checkpoint::open(golden_path("qwen3moe-tiny"));
  ASSERT_TRUE(checkpoint.ok());
  std::vector<TensorInfo> listed = synthetic_tensors(config, SyntheticFormat::kBf16);
  std::sort(listed.begin(), listed.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  ASSERT_EQ(listed.size(), checkpoint->tensors().size());
  for (size_t i = 0; i < listed.size(); ++i) {
    const TensorInfo& wanted = checkpoint->tensors()[i];
    EXPECT_EQ(listed[i].name, wanted.name);
    EXPECT_EQ(listed[i].dtype, wanted.dtype) << wanted.name;
    EXPECT_EQ(listed[i].shape, wanted.shape) << wanted.name;
    EXPECT_EQ(listed[i].bytes, wanted.bytes) << wanted.name;
  }
}

TEST(SyntheticTensors, OfQwen3_30B_A3BFitADeviceLayoutInEveryFormat) {
  const ModelConfig config =
      config_at(std::string(WARPROLL_SOURCE_DIR) + "/configs/models/qwen3-30b-a3b.json");
  EXPECT_EQ(config.num_layers, 48);
  EXPECT_EQ(config.num_experts, 128);
  EXPECT_EQ(config.vocab_size, 151936);
  for (const char* word : {"bf16", "mxfp8_experts"}) {
    const auto tensors = synthetic_tensors(config, synthetic_format_from(word).value());
    uint64_t bytes = 0;
    for (const TensorInfo& tensor : tensors) bytes += tensor.bytes;
    EXPECT_EQ(bytes / 1'000'000'000, std::string(word) == "bf16" ? 61u : 32u);
    const auto rows = make_arena_layout(config, tensors, false);
    ASSERT_TRUE(rows.ok()) << rows.status().to_string();
    const auto layout = make_device_layout(config, *rows);
    ASSERT_TRUE(layout.ok()) << layout.status().to_string();
    const auto weights = bind_device_weights(config, *layout, nullptr);
    ASSERT_TRUE(weights.ok()) << weights.status().to_string();
    EXPECT_EQ(weights->layers.size(), 48u);
    EXPECT_EQ(weights->layers[47].gate_up.num_experts, 128);
    // Tiles add row scales and the places between, not more.
    EXPECT_LT(layout->total_bytes, rows->total_bytes + rows->total_bytes / 256);
  }
  EXPECT_FALSE(synthetic_format_from("int4").has_value());
}

}  // namespace
}  // namespace warproll
