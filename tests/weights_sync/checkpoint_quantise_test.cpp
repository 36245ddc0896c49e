#include "weights_sync/checkpoint_quantise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "tests/weights_sync/checkpoint_fixtures.h"
#include "weights_sync/checkpoint_diff.h"
#include "weights_sync/checkpoint_writer.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;
namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// All linear layers but the router and the head, as the golden export has them.
bool is_linear(const TensorInfo& tensor) { return tensor.name.ends_with("_proj.weight"); }

Result<QuantiseSummary> quantise(const std::string& source, const std::string& target,
                                 int num_threads = 0) {
  WARPROLL_TRY_ASSIGN(checkpoint, Checkpoint::open(source));
  return quantise_checkpoint(checkpoint, target,
                             {.select = is_linear, .progress = {}, .num_threads = num_threads});
}

// A checkpoint of one file with one BF16 tensor "w_proj.weight".
void write_one_tensor(const std::string& directory, std::vector<int64_t> shape,
                      const std::vector<std::byte>& bytes, const std::string& config = "{}") {
  CheckpointToWrite checkpoint;
  checkpoint.tensors = {{"w_proj.weight", Dtype::kBf16, std::move(shape), bytes.size()}};
  checkpoint.bytes = [&](size_t) { return std::span<const std::byte>(bytes); };
  checkpoint.files.config_json = config;
  const Status status = write_checkpoint(directory, checkpoint);
  if (!status.ok()) throw std::runtime_error(status.to_string());
}

TEST(CheckpointQuantise, the_tiny_model_equals_its_golden_mxfp8_export_file_by_file) {
  const TempDir dir;
  const auto summary = quantise(golden("qwen3moe-tiny"), dir / "out");
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_EQ(summary->num_quantised, 84u);  // 3 layers of 4 attention and 8 x 3 expert matrices
  EXPECT_EQ(summary->num_copied, 18u);
  const std::string wanted_dir = golden("qwen3moe-tiny-mxfp8");
  size_t num_files = 0;
  for (const auto& file : fs::directory_iterator(wanted_dir)) {
    ++num_files;
    const std::string name = file.path().filename().string();
    EXPECT_EQ(read_bytes(dir / "out/" + name), read_bytes(file.path().string())) << name;
  }
  EXPECT_EQ(num_files, 3u);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "out"), fs::directory_iterator()), 3);
  auto wanted = Checkpoint::open(wanted_dir);
  auto got = Checkpoint::open(dir / "out");
  auto source = Checkpoint::open(golden("qwen3moe-tiny"));
  ASSERT_TRUE(wanted.ok() && got.ok() && source.ok());
  EXPECT_TRUE(diff_checkpoints(*wanted, *got).equal());
  EXPECT_EQ(summary->weight_digest, weight_digest(*wanted));
  EXPECT_EQ(summary->source_digest, weight_digest(*source));
}

TEST(CheckpointQuantise, shards_stay_and_the_index_names_the_scales) {
  const TempDir dir;
  ASSERT_TRUE(quantise(golden("qwen3moe-tiny-sharded"), dir / "out").ok());
  auto got = Checkpoint::open(dir / "out");  // checks index against shards
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  size_t num_scales = 0;
  for (const TensorInfo& tensor : got->tensors()) {
    if (tensor.name.ends_with("_scale_inv")) ++num_scales;
  }
  EXPECT_EQ(num_scales, 84u);
  for (size_t i = 0; i < got->tensors().size(); ++i) {
    EXPECT_THAT(std::string(got->shard_of(i)), HasSubstr("-of-00004.safetensors"));
  }
}

TEST(CheckpointQuantise, the_number_of_threads_does_not_touch_a_byte) {
  const TempDir dir;
  ASSERT_TRUE(quantise(golden("arith-v1"), dir / "a", 1).ok());
  ASSERT_TRUE(quantise(golden("arith-v1"), dir / "b", 7).ok());
  EXPECT_EQ(read_bytes(dir / "a/model.safetensors"), read_bytes(dir / "b/model.safetensors"));
}

TEST(CheckpointQuantise, other_files_go_along) {
  const TempDir dir;
  ASSERT_TRUE(quantise(golden("arith-v1"), dir / "out").ok());
  for (const char* file :
       {"/tokenizer.json", "/tokenizer_config.json", "/generation_config.json"}) {
    EXPECT_EQ(read_bytes(dir / "out" + file), read_bytes(golden("arith-v1") + file)) << file;
  }
}

TEST(CheckpointQuantise, a_quantised_source_is_refused) {
  const TempDir dir;
  EXPECT_THAT(quantise(golden("qwen3moe-tiny-mxfp8"), dir / "out").status().message(),
              AllOf(HasSubstr("qwen3moe-tiny-mxfp8"), HasSubstr("has a quantization_config")));
  EXPECT_THAT(quantise(golden("qwen3moe-tiny-mxfp8-modelopt"), dir / "out").status().message(),
              HasSubstr("has hf_quant_config.json"));
  EXPECT_FALSE(fs::exists(dir / "out"));
}

TEST(CheckpointQuantise, tensors_that_mxfp8_cannot_hold_are_named) {
  const TempDir dir;
  write_one_tensor(dir / "odd", {4, 33}, std::vector<std::byte>(4 * 33 * 2));
  EXPECT_THAT(quantise(dir / "odd", dir / "out").status().message(),
              HasSubstr("'w_proj.weight' is BF16 [4, 33], MXFP8 wants a matrix whose columns are a "
                        "multiple of 32"));
  write_one_tensor(dir / "vector", {64}, std::vector<std::byte>(64 * 2));
  EXPECT_THAT(quantise(dir / "vector", dir / "out").status().message(), HasSubstr("BF16 [64]"));
  std::vector<std::byte> nan(2 * 64 * 2);
  nan[2 * 100] = std::byte{0xc0};
  nan[2 * 100 + 1] = std::byte{0x7f};
  write_one_tensor(dir / "nan", {2, 64}, nan);
  EXPECT_THAT(quantise(dir / "nan", dir / "out").status().message(),
              HasSubstr("'w_proj.weight': element 100 is NaN or Inf (BF16 0x7fc0)"));
  EXPECT_FALSE(fs::exists(dir / "out"));
}

TEST(CheckpointQuantise, a_selection_of_nothing_and_an_existing_target_are_refused) {
  const TempDir dir;
  auto source = Checkpoint::open(golden("qwen3moe-tiny"));
  ASSERT_TRUE(source.ok());
  QuantiseOptions none;
  none.select = [](const TensorInfo&) { return false; };
  EXPECT_THAT(quantise_checkpoint(*source, dir / "out", none).status().message(),
              HasSubstr("no tensor is selected"));
  EXPECT_EQ(quantise(golden("qwen3moe-tiny"), dir.path()).status().code(),
            StatusCode::kAlreadyExists);
}

TEST(CheckpointQuantise, a_config_that_is_no_object_is_refused) {
  EXPECT_THAT(add_mxfp8_config("[]").status().message(), HasSubstr("is array, wanted an object"));
  EXPECT_THAT(add_mxfp8_config("{").status().message(), HasSubstr("not JSON"));
  EXPECT_THAT(add_mxfp8_config("").status().message(), HasSubstr("config.json: not JSON"));
}

TEST(CheckpointQuantise, progress_ends_at_the_source_bytes) {
  const TempDir dir;
  auto source = Checkpoint::open(golden("qwen3moe-tiny"));
  ASSERT_TRUE(source.ok());
  uint64_t last = 0;
  QuantiseOptions options;
  options.select = is_linear;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, 577792u);
    last = done;
  };
  ASSERT_TRUE(quantise_checkpoint(*source, dir / "out", options).ok());
  EXPECT_EQ(last, 577792u);
}

}  // namespace
}  // namespace warproll
