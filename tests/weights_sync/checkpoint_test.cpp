#include "weights_sync/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/weights_sync/checkpoint_fixtures.h"
#include "weights_sync/digest.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A shard with U8 tensors of one byte each.
std::string shard(const std::vector<std::string>& names) {
  std::string header = "{";
  for (size_t i = 0; i < names.size(); ++i) {
    header += (i > 0 ? ",\"" : "\"") + names[i] +
              R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(i) + "," +
              std::to_string(i + 1) + "]}";
  }
  return safetensors_bytes(header + "}", std::string(names.size(), 'x'));
}

class ShardedCheckpoint : public ::testing::Test {
 protected:
  void write_index(const std::string& weight_map) {
    write_bytes(dir_ / "model.safetensors.index.json", R"({"weight_map":)" + weight_map + "}");
  }
  std::string error() {
    const auto opened = Checkpoint::open(dir_.path());
    return opened.ok() ? "no error" : opened.status().message();
  }
  TempDir dir_;
};

TEST(Checkpoint, all_golden_checkpoints_open_sorted_by_name) {
  for (const std::string& name : golden_checkpoints()) {
    auto checkpoint = Checkpoint::open(golden(name));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
    const auto tensors = checkpoint->tensors();
    EXPECT_GT(tensors.size(), 20u) << name;
    EXPECT_TRUE(std::is_sorted(tensors.begin(), tensors.end(),
                               [](const auto& a, const auto& b) { return a.name < b.name; }));
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(checkpoint->bytes(i).size(), tensors[i].bytes) << name << " " << tensors[i].name;
    }
    EXPECT_THAT(checkpoint->files().config_json, HasSubstr("Qwen3MoeForCausalLM"));
    EXPECT_EQ(checkpoint->files().hf_quant_config_json.empty(),
              name != "qwen3moe-tiny-mxfp8-modelopt");
  }
}

TEST(Checkpoint, four_shards_have_the_digest_of_the_same_weights_in_one_file) {
  // The sharded golden model has weights of its own: put them into one file and compare.
  auto sharded = Checkpoint::open(golden("qwen3moe-tiny-sharded"));
  ASSERT_TRUE(sharded.ok());
  std::string header;
  std::string data;
  for (size_t i = 0; i < sharded->tensors().size(); ++i) {
    const TensorInfo& tensor = sharded->tensors()[i];
    const auto bytes = sharded->bytes(i);
    std::string shape;
    for (const int64_t dimension : tensor.shape) {
      shape += (shape.empty() ? "" : ",") + std::to_string(dimension);
    }
    header += (i > 0 ? ",\"" : "{\"") + tensor.name + R"(":{"dtype":"BF16","shape":[)" + shape +
              R"(],"data_offsets":[)" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + bytes.size()) + "]}";
    data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  const TempDir dir;
  write_bytes(dir / "model.safetensors", safetensors_bytes(header + "}", data));
  auto single = Checkpoint::open(dir.path());
  ASSERT_TRUE(single.ok()) << single.status().to_string();
  EXPECT_EQ(to_hex(weight_digest(*single)), to_hex(weight_digest(*sharded)));
  EXPECT_EQ(single->shard_of(0), "model.safetensors");
  EXPECT_THAT(std::string(sharded->shard_of(0)), HasSubstr("-of-00004.safetensors"));
}

TEST(Checkpoint, a_directory_without_weights_is_refused_by_name) {
  const TempDir dir;
  EXPECT_THAT(Checkpoint::open(dir.path()).status().message(),
              AllOf(HasSubstr(dir.path()),
                    HasSubstr("neither model.safetensors nor model.safetensors.index.json")));
  const auto missing = Checkpoint::open(dir / "none");
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("is not a directory"));
}

TEST_F(ShardedCheckpoint, shards_that_agree_with_the_index_open) {
  write_bytes(dir_ / "s1.safetensors", shard({"b", "c"}));
  write_bytes(dir_ / "s2.safetensors", shard({"a"}));
  write_index(R"({"a":"s2.safetensors","b":"s1.safetensors","c":"s1.safetensors"})");
  auto checkpoint = Checkpoint::open(dir_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  ASSERT_EQ(checkpoint->tensors().size(), 3u);
  EXPECT_EQ(checkpoint->shard_of(0), "s2.safetensors");
  EXPECT_EQ(checkpoint->shard_of(2), "s1.safetensors");
}

TEST_F(ShardedCheckpoint, a_missing_shard_is_named) {
  write_bytes(dir_ / "s1.safetensors", shard({"a"}));
  write_index(R"({"a":"s1.safetensors","b":"s2.safetensors"})");
  EXPECT_THAT(error(), AllOf(HasSubstr("missing"), HasSubstr("s2.safetensors")));
}

TEST_F(ShardedCheckpoint, a_tensor_of_the_index_that_is_in_no_shard_is_named) {
  write_bytes(dir_ / "s1.safetensors", shard({"a"}));
  write_index(R"({"a":"s1.safetensors","b":"s1.safetensors"})");
  EXPECT_THAT(error(), HasSubstr("the index says tensor 'b' is in s1.safetensors, but it is not"));
}

TEST_F(ShardedCheckpoint, a_tensor_of_a_shard_that_is_not_in_the_index_is_named) {
  write_bytes(dir_ / "s1.safetensors", shard({"a", "b"}));
  write_index(R"({"a":"s1.safetensors"})");
  EXPECT_THAT(error(), HasSubstr("tensor 'b' is in s1.safetensors but not in the index"));
}

TEST_F(ShardedCheckpoint, a_tensor_in_two_shards_is_named_with_both) {
  write_bytes(dir_ / "s1.safetensors", shard({"a", "b"}));
  write_bytes(dir_ / "s2.safetensors", shard({"b", "c"}));
  write_index(R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"})");
  EXPECT_THAT(error(), HasSubstr("tensor 'b' is in s1.safetensors and in s2.safetensors"));
}

TEST_F(ShardedCheckpoint, a_tensor_in_another_shard_than_the_index_says_is_named) {
  write_bytes(dir_ / "s1.safetensors", shard({"a"}));
  write_bytes(dir_ / "s2.safetensors", shard({"b"}));
  write_index(R"({"a":"s2.safetensors","b":"s1.safetensors"})");
  EXPECT_THAT(error(), HasSubstr("tensor 'a' is in s1.safetensors, but the index says s2"));
}

TEST_F(ShardedCheckpoint, an_index_must_not_lead_out_of_the_directory) {
  for (const char* name : {R"("../s.safetensors")", R"("/s.safetensors")", R"("..")", R"("")",
                           R"("a\\b")", R"("a\u0000b")", "7", "null"}) {
    write_index(R"({"a":)" + std::string(name) + "}");
    EXPECT_THAT(error(), HasSubstr("wanted a plain file name")) << name;
  }
}

TEST_F(ShardedCheckpoint, a_malformed_index_is_refused) {
  write_bytes(dir_ / "model.safetensors.index.json", "{");
  EXPECT_THAT(error(), AllOf(HasSubstr("index.json"), HasSubstr("not JSON")));
  write_bytes(dir_ / "model.safetensors.index.json", "[]");
  EXPECT_THAT(error(), HasSubstr("has no object weight_map"));
  write_index("[]");
  EXPECT_THAT(error(), HasSubstr("has no object weight_map"));
  write_index("{}");
  EXPECT_THAT(error(), HasSubstr("weight_map is empty"));
  write_index(R"({"a":"x","a":"y"})");
  EXPECT_THAT(error(), HasSubstr("the key \"a\" comes twice"));
}

TEST_F(ShardedCheckpoint, a_single_file_that_the_index_does_not_name_is_refused) {
  write_bytes(dir_ / "s1.safetensors", shard({"a"}));
  write_bytes(dir_ / "model.safetensors", shard({"a"}));
  write_index(R"({"a":"s1.safetensors"})");
  EXPECT_THAT(error(), HasSubstr("wanted one checkpoint"));
}

TEST_F(ShardedCheckpoint, a_bad_shard_is_named_in_its_error) {
  write_bytes(dir_ / "s1.safetensors", "short");
  write_index(R"({"a":"s1.safetensors"})");
  EXPECT_THAT(error(), AllOf(HasSubstr("s1.safetensors"), HasSubstr("has 5 bytes")));
}

}  // namespace
}  // namespace warproll
