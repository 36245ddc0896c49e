#include "weights_sync/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/weights_sync/checkpoint_fixtures.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr uint64_t kBucketBytes = 8192;

Manifest golden_manifest(std::string_view name = "qwen3moe-tiny") {
  auto checkpoint = Checkpoint::open(golden(name));
  auto manifest = make_manifest(*checkpoint, 7, kBucketBytes);
  return std::move(manifest).value();
}

GoldenGate some_gate() {
  return {
      .prompts = {{.prompt_ids = {1, 2, 3}, .expected_ids = {4, 5}, .logprobs = {-0.1f, -2.5f}}},
      .max_abs_logprob_error = 1e-3f};
}

// The error of a good manifest's JSON after `change`.
template <typename Change>
std::string error_after(const Change& change) {
  static const std::string good = manifest_to_json(golden_manifest());
  Json json = Json::parse(good);
  change(json);
  const auto manifest = manifest_from_json(json.dump());
  return manifest.ok() ? "no error" : manifest.status().message();
}

void expect_equal(const Manifest& a, const Manifest& b) {
  EXPECT_EQ(a.weight_version, b.weight_version);
  EXPECT_EQ(a.weight_digest, b.weight_digest);
  EXPECT_EQ(a.source_digest, b.source_digest);
  EXPECT_EQ(a.config_digest, b.config_digest);
  EXPECT_EQ(a.bucket_bytes, b.bucket_bytes);
  EXPECT_EQ(a.quantise, b.quantise);
  EXPECT_EQ(a.tied_groups, b.tied_groups);
  EXPECT_EQ(a.gate, b.gate);
  EXPECT_EQ(a.files.config_json, b.files.config_json);
  EXPECT_EQ(a.files.generation_config_json, b.files.generation_config_json);
  EXPECT_EQ(a.files.hf_quant_config_json, b.files.hf_quant_config_json);
  ASSERT_EQ(a.entries.size(), b.entries.size());
  for (size_t i = 0; i < a.entries.size(); ++i) {
    EXPECT_EQ(a.entries[i].tensor.name, b.entries[i].tensor.name);
    EXPECT_EQ(a.entries[i].tensor.dtype, b.entries[i].tensor.dtype);
    EXPECT_EQ(a.entries[i].tensor.shape, b.entries[i].tensor.shape);
    EXPECT_EQ(a.entries[i].tensor.bytes, b.entries[i].tensor.bytes);
    EXPECT_EQ(a.entries[i].bucket_index, b.entries[i].bucket_index);
    EXPECT_EQ(a.entries[i].bucket_offset_bytes, b.entries[i].bucket_offset_bytes);
    EXPECT_EQ(a.entries[i].digest, b.entries[i].digest);
  }
}

TEST(Manifest, every_golden_checkpoint_survives_the_wire_form) {
  for (const std::string& name : golden_checkpoints()) {
    const Manifest manifest = golden_manifest(name);
    const auto decoded = decode_manifest(encode_manifest(manifest));
    ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
    expect_equal(manifest, *decoded);
    auto checkpoint = Checkpoint::open(golden(name));
    EXPECT_EQ(manifest.weight_digest, weight_digest(*checkpoint));
  }
}

TEST(Manifest, gate_ties_and_recipe_survive_the_wire_form) {
  Manifest manifest = golden_manifest();
  manifest.gate = some_gate();
  manifest.quantise = QuantiseRecipe::kMxfp8;
  manifest.weight_digest = {};  // of an export the sender does not know
  ManifestEntry twin = manifest.entries.front();
  twin.tensor.name = "zz.tied";
  manifest.entries.push_back(twin);
  manifest.tied_groups = {{manifest.entries.front().tensor.name, "zz.tied"}};
  ASSERT_TRUE(seal_manifest(manifest).ok());
  const auto decoded = decode_manifest(encode_manifest(manifest));
  ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
  expect_equal(manifest, *decoded);
}

TEST(Manifest, entries_tile_the_stream_in_aligned_places_and_buckets_cover_it) {
  const Manifest manifest = golden_manifest();
  uint64_t end = 0;
  for (const ManifestEntry& entry : manifest.entries) {
    const uint64_t start = manifest.stream_offset(entry);
    EXPECT_EQ(start % kArenaAlignment, 0u);
    EXPECT_GE(start, end);
    EXPECT_LT(start - end, kArenaAlignment);
    EXPECT_LT(entry.bucket_offset_bytes, kBucketBytes);
    end = start + entry.tensor.bytes;
  }
  EXPECT_EQ(manifest.stream_bytes(), end);
  uint64_t covered = 0;
  for (uint64_t i = 0; i < manifest.num_buckets(); ++i) {
    const uint64_t bytes = manifest.bytes_of_bucket(i);
    EXPECT_TRUE(bytes == kBucketBytes || i + 1 == manifest.num_buckets());
    covered += bytes;
  }
  EXPECT_EQ(covered, end);
}

TEST(Manifest, forty_thousand_tensors_fit_and_are_quick) {
  std::mt19937_64 random(3);
  Manifest manifest;
  manifest.weight_version = 1;
  manifest.bucket_bytes = uint64_t{64} << 20;
  for (int i = 0; i < 40'000; ++i) {
    ManifestEntry entry;
    entry.tensor = {"model.layers." + std::to_string(i % 48) + ".mlp.experts." +
                        std::to_string(i / 48) + ".gate_proj.weight",
                    Dtype::kF8E4M3,
                    {768, 2048},
                    768 * 2048};
    for (auto& byte : entry.digest) byte = static_cast<uint8_t>(random());
    manifest.entries.push_back(entry);
  }
  ASSERT_TRUE(seal_manifest(manifest).ok());
  const auto start = std::chrono::steady_clock::now();
  const std::string packed = encode_manifest(manifest);
  const auto decoded = decode_manifest(packed);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
  EXPECT_EQ(decoded->entries.size(), 40'000u);
  EXPECT_LT(packed.size(), size_t{4} << 20);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their cost is not ours
  constexpr double kMaxSeconds = 10;                                 // about 0.5 s alone
  EXPECT_LT(took.count(), kMaxSeconds);
#endif
  RecordProperty("packed_bytes", static_cast<int>(packed.size()));
  RecordProperty("milliseconds", static_cast<int>(took.count() * 1e3));
}

TEST(Manifest, an_entry_at_another_place_is_refused_with_both_places) {
  EXPECT_THAT(error_after([](Json& m) { m["tensors"][1]["offset"] = 256; }),
              HasSubstr("bucket 8 offset 256, wanted bucket 8 offset 0"));
  EXPECT_THAT(
      error_after([](Json& m) { m["tensors"][1]["bucket"] = 7; }),
      AllOf(HasSubstr("'model.embed_tokens.weight' is at bucket 7"), HasSubstr("wanted bucket 8")));
  EXPECT_THAT(error_after([](Json& m) { m["tensors"][1]["bucket"] = 4294967295u; }),
              HasSubstr("is at bucket 4294967295"));
  EXPECT_THAT(error_after([](Json& m) { m["tensors"][1]["bucket"] = 4294967296u; }),
              HasSubstr("wanted an integer from 0 to 4294967295"));
}

TEST(Manifest, entries_that_are_wrong_in_themselves_are_refused_by_name) {
  EXPECT_THAT(error_after([](Json& m) { m["tensors"][1]["name"] = m["tensors"][0]["name"]; }),
              HasSubstr("'lm_head.weight' is listed twice"));
  EXPECT_THAT(error_after([](Json& m) { m["tensors"][0]["bytes"] = 65535; }),
              HasSubstr("has 65535 bytes, but BF16 [512, 64] wants 65536"));
  EXPECT_THAT(error_after([](Json& m) { m["tensors"][0]["dtype"] = "F7"; }), HasSubstr("'F7'"));
  EXPECT_THAT(error_after([](Json& m) { m["tensors"][0]["shape"][0] = -1; }),
              HasSubstr("shape -1, wanted integers from 0"));
  EXPECT_THAT(error_after([](Json& m) {
                m["tensors"][0]["shape"] = {1u << 31, 1u << 31, 4};
              }),
              HasSubstr("overflows"));
  EXPECT_THAT(error_after([](Json& m) {
                m["tensors"][0]["shape"] = {1u << 31, 1u << 20};
                m["tensors"][0]["bytes"] = uint64_t{1} << 52;
              }),
              HasSubstr("ends past 281474976710656 stream bytes"));
  EXPECT_THAT(error_after([](Json& m) { m["tensors"][0]["shape"] = Json::array_t(9, 1); }),
              HasSubstr("9 dimensions"));
  EXPECT_THAT(error_after([](Json& m) { m["tensors"][0]["name"] = ""; }), HasSubstr("0 bytes"));
  EXPECT_THAT(error_after([](Json& m) { m["tensors"][0]["digest"] = "12"; }), HasSubstr("digest"));
  EXPECT_THAT(error_after([](Json& m) { m["tensors"][0].erase("offset"); }),
              HasSubstr("tensor 0 has no offset"));
  EXPECT_THAT(error_after([](Json& m) { m["tensors"][0]["extra"] = 1; }),
              HasSubstr("wanted only the 7 that are known"));
  EXPECT_THAT(error_after([](Json& m) { m["tensors"] = Json::array(); }), HasSubstr("0 tensors"));
  EXPECT_THAT(error_after([](Json& m) { m["tensors"] = 5; }), HasSubstr("tensors is number"));
}

TEST(Manifest, digests_that_do_not_cover_the_entries_are_data_loss) {
  const std::string zeros(32, '0');
  EXPECT_THAT(error_after([&](Json& m) { m["tensors"][3]["digest"] = zeros; }),
              HasSubstr("source_digest is"));
  EXPECT_THAT(error_after([&](Json& m) { m["source_digest"] = zeros; }),
              HasSubstr("source_digest is " + zeros));
  EXPECT_THAT(error_after([&](Json& m) { m["weight_digest"] = zeros; }),
              HasSubstr("weight_digest is " + zeros));
  EXPECT_THAT(error_after([&](Json& m) { m["config_digest"] = zeros; }),
              HasSubstr("config_digest is " + zeros));
  EXPECT_THAT(error_after([](Json& m) { m["files"]["config.json"] = "{}"; }),
              HasSubstr("config_digest is"));
}

TEST(Manifest, fields_of_the_whole_are_checked) {
  EXPECT_THAT(error_after([](Json& m) { m["format"] = "x"; }),
              HasSubstr("is 'x' version 1, wanted 'warproll-manifest' version 1"));
  EXPECT_THAT(error_after([](Json& m) { m["format_version"] = 2; }),
              HasSubstr("version 2, wanted"));
  EXPECT_THAT(error_after([](Json& m) { m["weight_version"] = 0; }),
              HasSubstr("wanted at least 1"));
  EXPECT_THAT(error_after([](Json& m) { m["weight_version"] = 1.5; }), HasSubstr("1.5"));
  EXPECT_THAT(error_after([](Json& m) { m["bucket_bytes"] = 0; }), HasSubstr("bucket_bytes is 0"));
  EXPECT_THAT(error_after([](Json& m) { m["bucket_bytes"] = 5000; }),
              HasSubstr("multiples of 256"));
  EXPECT_THAT(error_after([](Json& m) { m["quantise"] = "int4"; }), HasSubstr("'int4'"));
  EXPECT_THAT(error_after([](Json& m) { m["surprise"] = 1; }), HasSubstr("that are known"));
  EXPECT_THAT(error_after([](Json& m) { m.erase("files"); }), HasSubstr("has no files"));
  EXPECT_THAT(error_after([](Json& m) { m["files"]["config.json"] = 3; }),
              HasSubstr("config.json 3, wanted a string"));
  EXPECT_THAT(error_after([](Json& m) { m = Json::array(); }), HasSubstr("manifest is array"));
}

TEST(Manifest, tied_groups_must_name_equal_tensors) {
  const auto with_groups = [](Json groups) {
    return error_after([&](Json& m) { m["tied_groups"] = groups; });
  };
  EXPECT_THAT(with_groups(Json::parse(R"([["lm_head.weight"]])")), HasSubstr("has 1 names"));
  EXPECT_THAT(with_groups(Json::parse(R"([["lm_head.weight","none"]])")), HasSubstr("'none'"));
  EXPECT_THAT(with_groups(Json::parse(R"([["lm_head.weight","lm_head.weight"]])")),
              HasSubstr("'lm_head.weight'"));
  EXPECT_THAT(with_groups(Json::parse(R"([["lm_head.weight","model.embed_tokens.weight"]])")),
              HasSubstr("differ in dtype, shape or digest"));
  EXPECT_THAT(with_groups(Json::parse(R"([7])")), HasSubstr("malformed"));
  EXPECT_THAT(with_groups(Json::parse(R"([[7]])")), HasSubstr("malformed"));
}

TEST(Manifest, gates_are_checked) {
  const auto with_gate = [](const std::string& gate) {
    return error_after([&](Json& m) { m["gate"] = Json::parse(gate); });
  };
  const auto with_prompt = [&](const std::string& prompt) {
    return with_gate(R"({"max_abs_logprob_error":0.1,"prompts":[)" + prompt + "]}");
  };
  EXPECT_EQ(with_prompt(R"({"prompt_ids":[1],"expected_ids":[2],"logprobs":[-1]})"), "no error");
  EXPECT_THAT(with_prompt(R"({"prompt_ids":[],"expected_ids":[2],"logprobs":[-1]})"),
              HasSubstr("has 0 prompt"));
  EXPECT_THAT(with_prompt(R"({"prompt_ids":[1],"expected_ids":[2],"logprobs":[]})"),
              HasSubstr("has 0 logprobs, wanted 1"));
  EXPECT_THAT(with_prompt(R"({"prompt_ids":[-1],"expected_ids":[2],"logprobs":[-1]})"),
              HasSubstr("prompt_ids -1"));
  EXPECT_THAT(with_prompt(R"({"prompt_ids":[2147483648],"expected_ids":[2],"logprobs":[-1]})"),
              HasSubstr("prompt_ids 2147483648"));
  EXPECT_THAT(with_prompt(R"({"prompt_ids":[1],"expected_ids":[2],"logprobs":[null]})"),
              HasSubstr("logprobs null"));
  EXPECT_THAT(with_prompt(R"({"prompt_ids":[1],"expected_ids":[2],"logprobs":[1e300]})"),
              HasSubstr("NaN or Inf"));
  EXPECT_THAT(with_prompt(R"({"prompt_ids":[1],"expected_ids":[2],"logprobs":7})"),
              HasSubstr("logprobs 7"));
  EXPECT_THAT(with_gate(R"({"max_abs_logprob_error":0.1,"prompts":[]})"), HasSubstr("0 prompts"));
  EXPECT_THAT(with_gate(R"({"max_abs_logprob_error":0,"prompts":[]})"), HasSubstr("0 prompts"));
  EXPECT_THAT(with_gate(R"({"max_abs_logprob_error":"x","prompts":[]})"), HasSubstr("a number"));
  EXPECT_THAT(with_gate("3"), HasSubstr("golden gate is number"));
  Manifest manifest = golden_manifest();
  manifest.gate = some_gate();
  manifest.gate->max_abs_logprob_error = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(validate(manifest).message(), HasSubstr("max_abs_logprob_error is nan"));
}

TEST(Manifest, bytes_that_are_no_whole_zstd_frame_are_refused) {
  const std::string good = encode_manifest(golden_manifest());
  EXPECT_THAT(decode_manifest("").status().message(), HasSubstr("ends early"));
  EXPECT_THAT(decode_manifest("hello world").status().message(), HasSubstr("not a zstd frame"));
  EXPECT_THAT(decode_manifest(good.substr(0, good.size() / 2)).status().message(),
              HasSubstr("ends early"));
  EXPECT_THAT(decode_manifest(good + "x").status().message(), HasSubstr("1 bytes after"));
}

TEST(Manifest, a_decompression_bomb_stops_at_the_limit) {
  const std::string zeros(kMaxManifestJsonBytes + 1, ' ');
  std::string bomb(ZSTD_compressBound(zeros.size()), '\0');
  bomb.resize(ZSTD_compress(bomb.data(), bomb.size(), zeros.data(), zeros.size(), 1));
  ASSERT_LT(bomb.size(), size_t{1} << 20);
  EXPECT_THAT(decode_manifest(bomb).status().message(), HasSubstr("unpacks to more than"));
}

TEST(Manifest, keys_that_come_twice_and_deep_nesting_are_refused) {
  EXPECT_THAT(manifest_from_json(R"({"format":"a","format":"b"})").status().message(),
              HasSubstr("\"format\" comes twice"));
  EXPECT_THAT(manifest_from_json(std::string(1'000'000, '[')).status().message(),
              HasSubstr("nested deeper"));
  EXPECT_THAT(manifest_from_json("").status().message(), HasSubstr("not JSON"));
}

TEST(Manifest, a_config_file_that_is_not_utf8_is_refused_before_it_is_sent) {
  Manifest manifest = golden_manifest();
  manifest.files.config_json = "\xff";
  EXPECT_THAT(seal_manifest(manifest).message(), HasSubstr("not UTF-8"));
}

}  // namespace
}  // namespace warproll
