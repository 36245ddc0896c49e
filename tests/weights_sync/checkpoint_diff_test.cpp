#include "weights_sync/checkpoint_diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "tests/weights_sync/checkpoint_fixtures.h"
#include "weights_sync/checkpoint_verify.h"
#include "weights_sync/checkpoint_writer.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::byte> floats(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

struct Written {
  TensorInfo info;
  std::vector<std::byte> bytes;
};
Checkpoint write(const std::string& directory, const std::vector<Written>& tensors,
                 const CheckpointFiles& files = {}) {
  CheckpointToWrite checkpoint;
  for (const Written& tensor : tensors) checkpoint.tensors.push_back(tensor.info);
  checkpoint.bytes = [&](size_t i) { return std::span<const std::byte>(tensors[i].bytes); };
  checkpoint.files = files;
  const Status status = write_checkpoint(directory, checkpoint);
  if (!status.ok()) throw std::runtime_error(status.to_string());
  auto opened = Checkpoint::open(directory);
  return std::move(opened).value();
}

TEST(CheckpointDiff, a_checkpoint_equals_itself_however_it_is_sharded) {
  const TempDir dir;
  auto source = Checkpoint::open(golden("qwen3moe-tiny-sharded"));
  ASSERT_TRUE(source.ok());
  CheckpointToWrite copy;
  copy.tensors.assign(source->tensors().begin(), source->tensors().end());
  copy.bytes = [&](size_t i) { return source->bytes(i); };
  copy.files = source->files();
  ASSERT_TRUE(write_checkpoint(dir / "copy", copy).ok());
  auto single = Checkpoint::open(dir / "copy");
  ASSERT_TRUE(single.ok());
  const CheckpointDiff diff = diff_checkpoints(*source, *single);
  EXPECT_TRUE(diff.equal());
  EXPECT_EQ(diff.num_equal_tensors, source->tensors().size());
}

TEST(CheckpointDiff, every_kind_of_difference_is_found_and_measured) {
  const TempDir dir;
  const Checkpoint a =
      write(dir / "a",
            {{{"bytes", Dtype::kF32, {4}, 16}, floats({1, 2, 3, 4})},
             {{"dtype", Dtype::kF32, {1}, 4}, floats({1})},
             {{"equal", Dtype::kF32, {1}, 4}, floats({1})},
             {{"ints", Dtype::kI32, {2}, 8}, floats({1, 2})},
             {{"nan", Dtype::kF32, {1}, 4}, floats({NAN})},
             {{"only.a", Dtype::kF32, {1}, 4}, floats({1})},
             {{"shape", Dtype::kF32, {2}, 8}, floats({1, 2})}},
            {.config_json = "{}", .generation_config_json = "{}", .hf_quant_config_json = ""});
  const Checkpoint b =
      write(dir / "b",
            {{{"bytes", Dtype::kF32, {4}, 16}, floats({1, 2.5f, 3, 3})},
             {{"dtype", Dtype::kI32, {1}, 4}, floats({1})},
             {{"equal", Dtype::kF32, {1}, 4}, floats({1})},
             {{"ints", Dtype::kI32, {2}, 8}, floats({1, 3})},
             {{"nan", Dtype::kF32, {1}, 4}, floats({1})},
             {{"only.b", Dtype::kF32, {1}, 4}, floats({1})},
             {{"shape", Dtype::kF32, {1, 2}, 8}, floats({1, 2})}},
            {.config_json = "[]", .generation_config_json = "{}", .hf_quant_config_json = ""});
  const CheckpointDiff diff = diff_checkpoints(a, b);
  EXPECT_EQ(diff.num_equal_tensors, 1u);
  EXPECT_EQ(diff.different_files, std::vector<std::string>{"config.json"});
  std::map<std::string, TensorDifference> by_name;
  for (const TensorDifference& difference : diff.tensors) by_name[difference.name] = difference;
  ASSERT_EQ(by_name.size(), 7u);
  EXPECT_EQ(by_name["bytes"].kind, TensorDifferenceKind::kBytes);
  EXPECT_EQ(by_name["bytes"].num_different_elements, 2u);
  EXPECT_EQ(by_name["bytes"].max_abs_difference, 1.0);
  EXPECT_EQ(by_name["dtype"].kind, TensorDifferenceKind::kDtype);
  EXPECT_EQ(by_name["ints"].num_different_elements, 1u);
  EXPECT_EQ(by_name["ints"].max_abs_difference, std::nullopt);
  EXPECT_EQ(by_name["nan"].num_different_elements, 1u);
  EXPECT_EQ(by_name["nan"].max_abs_difference, std::nullopt);
  EXPECT_EQ(by_name["only.a"].kind, TensorDifferenceKind::kOnlyInA);
  EXPECT_EQ(by_name["only.b"].kind, TensorDifferenceKind::kOnlyInB);
  EXPECT_EQ(by_name["only.b"].b.bytes, 4u);
  EXPECT_EQ(by_name["shape"].kind, TensorDifferenceKind::kShape);
}

TEST(CheckpointDiff, narrow_floats_are_compared_by_value) {
  const TempDir dir;
  const auto byte = [](uint8_t b) { return std::vector{static_cast<std::byte>(b)}; };
  const Checkpoint a = write(dir / "a", {{{"e4m3", Dtype::kF8E4M3, {1}, 1}, byte(0x38)},
                                         {{"e8m0", Dtype::kF8E8M0, {1}, 1}, byte(127)}});
  const Checkpoint b = write(dir / "b", {{{"e4m3", Dtype::kF8E4M3, {1}, 1}, byte(0x7e)},
                                         {{"e8m0", Dtype::kF8E8M0, {1}, 1}, byte(129)}});
  const CheckpointDiff diff = diff_checkpoints(a, b);
  ASSERT_EQ(diff.tensors.size(), 2u);
  EXPECT_EQ(diff.tensors[0].max_abs_difference, 447.0);
  EXPECT_EQ(diff.tensors[1].max_abs_difference, 3.0);
}

TEST(CheckpointVerify, all_golden_checkpoints_are_in_order) {
  for (const std::string& name : golden_checkpoints()) {
    const auto report = verify_checkpoint(golden(name), model_layout());
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_TRUE(report->ok()) << name << ": " << ::testing::PrintToString(report->problems);
    EXPECT_GT(report->arena_bytes.value_or(0), 0u);
    EXPECT_EQ(report->num_shards, name == "qwen3moe-tiny-sharded" ? 4u : 1u);
    auto checkpoint = Checkpoint::open(golden(name));
    ASSERT_TRUE(checkpoint.ok());
    EXPECT_EQ(report->weight_digest, weight_digest(*checkpoint));
    uint64_t bytes = 0;
    for (const auto& [dtype, count] : report->dtypes) bytes += count.bytes;
    EXPECT_EQ(bytes, report->bytes);
  }
}

TEST(CheckpointVerify, every_nan_and_a_layout_that_does_not_fit_are_reported_together) {
  const TempDir dir;
  static_cast<void>(write(dir / "bad", {{{"a", Dtype::kF32, {2}, 8}, floats({1, NAN})},
                                        {{"b", Dtype::kF32, {1}, 4}, floats({INFINITY})},
                                        {{"c", Dtype::kF32, {1}, 4}, floats({1})}}));
  const auto refuse = [](const CheckpointFiles&,
                         std::span<const TensorInfo>) -> Result<ArenaLayout> {
    return invalid_argument("tensor 'c' is not of this model");
  };
  const auto report = verify_checkpoint(dir / "bad", refuse);
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->problems.size(), 3u);
  EXPECT_THAT(report->problems[0], HasSubstr("'a': element 1 is NaN"));
  EXPECT_THAT(report->problems[1], HasSubstr("'b': element 0 is NaN or Inf"));
  EXPECT_THAT(report->problems[2], HasSubstr("'c' is not of this model"));
  EXPECT_FALSE(report->ok());
  EXPECT_EQ(report->arena_bytes, std::nullopt);
}

TEST(CheckpointVerify, a_tensor_the_layout_has_no_place_for_is_reported) {
  const TempDir dir;
  static_cast<void>(write(dir / "c", {{{"a", Dtype::kF32, {1}, 4}, floats({1})},
                                      {{"b", Dtype::kF32, {1}, 4}, floats({1})}}));
  const auto only_a = [](const CheckpointFiles&,
                         std::span<const TensorInfo>) -> Result<ArenaLayout> {
    ArenaLayout layout;
    layout.slots = {{"a", Dtype::kF32, {1}, 0, 4, {}}};
    layout.slots[0].sources = {{.tensor_name = "a", .dtype = Dtype::kF32, .shape = {1}}};
    layout.total_bytes = 4;
    return layout;
  };
  const auto report = verify_checkpoint(dir / "c", only_a);
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->problems.size(), 1u);
  EXPECT_THAT(report->problems[0], HasSubstr("'b' has no place in the layout"));
}

TEST(CheckpointVerify, tied_tensors_that_differ_are_reported) {
  const TempDir dir;
  static_cast<void>(write(dir / "c", {{{"a", Dtype::kF32, {1}, 4}, floats({1})},
                                      {{"b", Dtype::kF32, {1}, 4}, floats({2})}}));
  const auto tied = [](const CheckpointFiles&, std::span<const TensorInfo>) -> Result<ArenaLayout> {
    ArenaLayout layout;
    layout.slots = {{"a", Dtype::kF32, {1}, 0, 4, {}}};
    layout.slots[0].sources = {{.tensor_name = "a", .dtype = Dtype::kF32, .shape = {1}}};
    layout.aliases = {{"b", "a"}};
    layout.total_bytes = 4;
    return layout;
  };
  const auto report = verify_checkpoint(dir / "c", tied);
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->problems.size(), 1u);
  EXPECT_THAT(report->problems[0], HasSubstr("'b' differs from 'a'"));
}

TEST(CheckpointVerify, a_checkpoint_that_does_not_open_is_a_failure) {
  const TempDir dir;
  write_bytes(dir / "model.safetensors", "short");
  EXPECT_THAT(verify_checkpoint(dir.path(), {}).status().message(),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("has 5 bytes")));
}

}  // namespace
}  // namespace warproll
