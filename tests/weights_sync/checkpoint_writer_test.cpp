#include "weights_sync/checkpoint_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <random>

#include "tests/weights_sync/checkpoint_fixtures.h"
#include "weights_sync/safetensors.h"
#include "weights_sync/tensor_check.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;
namespace fs = std::filesystem;
using ::testing::HasSubstr;

size_t num_entries(const std::string& directory) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

CheckpointToWrite copy_of(const Checkpoint& source) {
  CheckpointToWrite copy;
  copy.tensors.assign(source.tensors().begin(), source.tensors().end());
  copy.bytes = [&source](size_t i) { return source.bytes(i); };
  copy.files = source.files();
  return copy;
}

TEST(CheckpointWriter, golden_files_are_rewritten_byte_for_byte) {
  for (const std::string& name : golden_checkpoints()) {
    if (name == "qwen3moe-tiny-sharded") continue;  // has its own test below
    auto source = Checkpoint::open(golden(name));
    ASSERT_TRUE(source.ok());
    const TempDir dir;
    const Status status = write_checkpoint(dir / "copy", copy_of(*source));
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (const char* file : {"/model.safetensors", "/config.json", "/generation_config.json"}) {
      EXPECT_EQ(read_bytes(dir / "copy" + file), read_bytes(golden(name) + file)) << name << file;
    }
  }
}

TEST(CheckpointWriter, shards_hold_the_same_weights_and_keep_to_their_size) {
  auto source = Checkpoint::open(golden("qwen3moe-tiny"));
  ASSERT_TRUE(source.ok());
  const TempDir dir;
  CheckpointToWrite copy = copy_of(*source);
  copy.max_shard_bytes = 100'000;
  ASSERT_TRUE(write_checkpoint(dir / "copy", copy).ok());
  auto written = Checkpoint::open(dir / "copy");
  ASSERT_TRUE(written.ok()) << written.status().to_string();
  EXPECT_EQ(weight_digest(*written), weight_digest(*source));
  size_t num_shards = 0;
  for (const auto& file : fs::directory_iterator(dir / "copy")) {
    if (file.path().extension() != ".safetensors") continue;
    ++num_shards;
    EXPECT_LE(file.file_size(), 100'000u + 20'000u);  // and the header
  }
  EXPECT_GE(num_shards, 6u);
}

TEST(CheckpointWriter, random_tensors_come_back_as_they_were) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    CheckpointToWrite written;
    std::vector<std::vector<std::byte>> bytes;
    for (uint64_t i = 0; i < random() % 20; ++i) {
      TensorInfo tensor;
      tensor.name = "t\"\\\xc3\xa9." + std::to_string(random());
      tensor.dtype = static_cast<Dtype>(random() % 9);
      for (uint64_t d = 0; d < random() % 5; ++d) {
        tensor.shape.push_back(static_cast<int64_t>(random() % 6));
      }
      tensor.bytes = *checked_tensor_bytes(tensor.dtype, tensor.shape);
      bytes.push_back(random_bytes(tensor.bytes, random));
      written.tensors.push_back(std::move(tensor));
    }
    written.bytes = [&](size_t i) { return std::span<const std::byte>(bytes[i]); };
    written.max_shard_bytes = seed % 3 * 500;
    const TempDir dir;
    ASSERT_TRUE(write_checkpoint(dir / "c", written).ok()) << "seed " << seed;
    auto read = Checkpoint::open(dir / "c");
    ASSERT_TRUE(read.ok()) << read.status().to_string() << " seed " << seed;
    ASSERT_EQ(read->tensors().size(), written.tensors.size());
    for (size_t i = 0; i < read->tensors().size(); ++i) {
      const TensorInfo& got = read->tensors()[i];
      size_t j = 0;
      while (written.tensors[j].name != got.name) ++j;
      EXPECT_EQ(got.dtype, written.tensors[j].dtype);
      EXPECT_EQ(got.shape, written.tensors[j].shape);
      EXPECT_TRUE(equal_bytes(read->bytes(i), bytes[j])) << got.name << " seed " << seed;
    }
  }
}

TEST(CheckpointWriter, an_existing_target_is_refused_and_left_alone) {
  auto source = Checkpoint::open(golden("qwen3moe-tiny"));
  ASSERT_TRUE(source.ok());
  const TempDir dir;
  fs::create_directory(dir / "there");
  const Status status = write_checkpoint(dir / "there", copy_of(*source));
  EXPECT_EQ(status.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(status.message(), HasSubstr("there: exists already"));
  EXPECT_EQ(num_entries(dir.path()), 1u);
  EXPECT_EQ(num_entries(dir / "there"), 0u);
}

TEST(CheckpointWriter, a_target_that_appears_meanwhile_is_not_replaced) {
  const TempDir dir;
  auto staged = StagedDirectory::create(dir / "target");
  ASSERT_TRUE(staged.ok());
  fs::create_directory(dir / "target");
  EXPECT_EQ(staged->commit().code(), StatusCode::kAlreadyExists);
}

TEST(CheckpointWriter, a_failed_write_leaves_nothing_behind) {
  const TempDir dir;
  CheckpointToWrite bad;
  bad.tensors = {{"t", Dtype::kU8, {3}, 3}};
  const std::vector<std::byte> two(2);
  bad.bytes = [&](size_t) { return std::span<const std::byte>(two); };
  EXPECT_THAT(write_checkpoint(dir / "c", bad).message(), HasSubstr("2 bytes, wanted 3"));
  EXPECT_EQ(num_entries(dir.path()), 0u);
}

TEST(CheckpointWriter, a_directory_that_cannot_be_made_is_named) {
  EXPECT_THAT(StagedDirectory::create("/proc/none/c").status().message(),
              HasSubstr("/proc/none/c"));
}

TEST(SafetensorsWriter, wants_each_announced_tensor_once_and_all_of_them) {
  const TempDir dir;
  const std::vector<std::byte> three(3);
  auto writer =
      SafetensorsWriter::create(dir / "x", {{"a", Dtype::kU8, {3}, 3}, {"b", Dtype::kU8, {3}, 3}});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->write("a", three).ok());
  EXPECT_THAT(writer->write("a", three).message(), HasSubstr("'a' is unknown or was written"));
  EXPECT_THAT(writer->write("c", three).message(), HasSubstr("'c' is unknown"));
  EXPECT_THAT(writer->finish().message(), HasSubstr("1 of 2 tensors were written"));
  EXPECT_FALSE(fs::exists(dir / "x"));
  ASSERT_TRUE(writer->write("b", three).ok());
  ASSERT_TRUE(writer->finish().ok());
  EXPECT_TRUE(SafetensorsFile::open(dir / "x").ok());
  EXPECT_EQ(num_entries(dir.path()), 1u);
  EXPECT_THAT(
      SafetensorsWriter::create(dir / "y", {{"a", Dtype::kU8, {1}, 1}, {"a", Dtype::kF32, {1}, 4}})
          .status()
          .message(),
      HasSubstr("'a' is listed twice"));
  EXPECT_THAT(
      SafetensorsWriter::create(dir / "y", {{"a\xff", Dtype::kU8, {1}, 1}}).status().message(),
      HasSubstr("'a\\xff' is not UTF-8"));
}

TEST(SafetensorsWriter, files_without_tensors_or_metadata_are_valid) {
  const TempDir dir;
  for (const bool metadata : {false, true}) {
    std::vector<std::pair<std::string, std::string>> pairs;
    if (metadata) pairs.emplace_back("format", "pt");
    auto writer = SafetensorsWriter::create(dir / "x", {}, pairs);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->finish().ok());
    auto file = SafetensorsFile::open(dir / "x");
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    EXPECT_EQ(file->metadata().size(), pairs.size());
  }
}

TEST(SafetensorsWriter, a_full_disk_is_resource_exhausted_and_leaves_nothing) {
  const TempDir dir;
  auto writer = SafetensorsWriter::create(dir / "x", {{"a", Dtype::kU8, {100'000}, 100'000}});
  ASSERT_TRUE(writer.ok());
  // A file size limit stands in for the full disk: write() fails with EFBIG.
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{.rlim_cur = 10'000, .rlim_max = old.rlim_max};
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = writer->write("a", std::vector<std::byte>(100'000));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("cannot write"));
  EXPECT_FALSE(writer->finish().ok());
  { const SafetensorsWriter dropped = std::move(writer).value(); }
  EXPECT_EQ(num_entries(dir.path()), 0u);
}

}  // namespace
}  // namespace warproll
