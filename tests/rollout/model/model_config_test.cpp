#include "rollout/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "golden.h"

namespace warproll {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json base() {
  return json::parse(testing::read_file(testing::golden_path("qwen3moe-tiny/config.json")));
}

Result<ModelConfig> parse(const json& config, const std::string& generation = "",
                          const std::string& hf_quant = "") {
  return parse_model_config(config.dump(), generation, hf_quant);
}

// The config with one change must be refused with a message that has all of `wanted`.
void expect_refused(const json& change, const std::vector<std::string>& wanted) {
  json config = base();
  config.merge_patch(change);
  const auto result = parse(config);
  ASSERT_FALSE(result.ok()) << change;
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  for (const std::string& text : wanted) {
    EXPECT_THAT(result.status().message(), HasSubstr(text)) << change;
  }
}

TEST(ModelConfig, BothTransformersDialectsSayTheSame) {
  const auto v5 = parse(base());
  const auto v4 = parse_model_config(
      testing::read_file(testing::golden_path("qwen3moe-tiny-hf4/config.json")), "", "");
  ASSERT_TRUE(v5.ok() && v4.ok());
  for (const ModelConfig& c : {*v5, *v4}) {
    EXPECT_EQ(c.architecture, "Qwen3MoeForCausalLM");
    EXPECT_EQ(c.hidden_size, 64);
    EXPECT_EQ(c.vocab_size, 512);
    EXPECT_EQ(c.num_layers, 3);
    EXPECT_EQ(c.num_heads, 4);
    EXPECT_EQ(c.num_kv_heads, 2);
    EXPECT_EQ(c.head_dim, 32);
    EXPECT_EQ(c.moe_intermediate_size, 32);
    EXPECT_EQ(c.num_experts, 8);
    EXPECT_EQ(c.num_experts_per_tok, 2);
    EXPECT_TRUE(c.norm_topk_prob);
    EXPECT_FALSE(c.tie_word_embeddings);
    EXPECT_EQ(c.rms_norm_eps, 1e-6f);
    EXPECT_EQ(c.rope_theta, 1e6);
    EXPECT_EQ(c.max_position_embeddings, 1024);
    EXPECT_EQ(c.num_moe_layers(), 3);
    EXPECT_EQ(c.quant, QuantScheme::kNone);
    EXPECT_TRUE(c.eos_token_ids.empty());
  }
}

TEST(ModelConfig, EosIdsComeFromGenerationConfigFirst) {
  json config = base();
  config["eos_token_id"] = 7;
  EXPECT_THAT(parse(config)->eos_token_ids, ElementsAre(7));
  EXPECT_THAT(parse(config, "{}")->eos_token_ids, ElementsAre(7));
  EXPECT_THAT(parse(config, R"({"eos_token_id": null})")->eos_token_ids, ElementsAre(7));
  EXPECT_THAT(parse(config, R"({"eos_token_id": 9})")->eos_token_ids, ElementsAre(9));
  EXPECT_THAT(parse(config, R"({"eos_token_id": [9, 10]})")->eos_token_ids, ElementsAre(9, 10));
  for (const char* bad : {"[9, 512]", "-1", "\"9\"", "[[9]]", "1.5"}) {
    const auto result = parse(config, std::string(R"({"eos_token_id": )") + bad + "}");
    ASSERT_FALSE(result.ok()) << bad;
    EXPECT_THAT(result.status().message(), HasSubstr("generation_config.json: eos_token_id"));
  }
}

TEST(ModelConfig, DenseLayersComeFromStepAndList) {
  json config = base();
  config["num_hidden_layers"] = 6;
  config["decoder_sparse_step"] = 2;
  config["mlp_only_layers"] = {3};
  const auto result = parse(config);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_THAT(result->is_moe_layer, ElementsAre(false, true, false, false, false, true));
  EXPECT_EQ(result->num_moe_layers(), 2);
}

TEST(ModelConfig, QuantisationIsReadInEveryDialect) {
  const auto quant = [](const std::string& name) {
    const std::string hf =
        name == "qwen3moe-tiny-mxfp8-modelopt"
            ? testing::read_file(testing::golden_path(name) + "/hf_quant_config.json")
            : "";
    const auto config =
        parse_model_config(testing::read_file(testing::golden_path(name) + "/config.json"), "", hf);
    EXPECT_TRUE(config.ok()) << config.status().to_string();
    return std::tuple(config->quant, config->block_rows, config->block_cols);
  };
  EXPECT_EQ(quant("qwen3moe-tiny-mxfp8"), std::tuple(QuantScheme::kMxfp8, 0, 0));
  EXPECT_EQ(quant("qwen3moe-tiny-mxfp8-ct"), std::tuple(QuantScheme::kMxfp8, 0, 0));
  EXPECT_EQ(quant("qwen3moe-tiny-mxfp8-modelopt"), std::tuple(QuantScheme::kMxfp8, 0, 0));
  EXPECT_EQ(quant("qwen3moe-tiny-fp8block"), std::tuple(QuantScheme::kFp8Block, 128, 128));
}

TEST(ModelConfig, UnknownQuantisationIsRefusedByName) {
  const auto with = [](const json& quant) { return json{{"quantization_config", quant}}; };
  expect_refused(with({{"quant_method", "awq"}}), {"quant_method is 'awq'", "'mxfp8'"});
  expect_refused(with({{"quant_method", "fp8"}}), {"weight_block_size", "[rows, cols]"});
  expect_refused(with({{"quant_method", "mxfp8"}, {"weight_block_size", {1, 16}}}),
                 {"weight_block_size is [1, 16]", "[1, 32]"});
  expect_refused(with({{"quant_method", "mxfp8"}, {"scale_fmt", "float"}}), {"'float'", "'ue8m0'"});
  expect_refused(with({{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}}),
                 {"'pack-quantized'", "'mxfp8-quantized'"});
  expect_refused(with({{"quant_method", "compressed-tensors"},
                       {"format", "mxfp8-quantized"},
                       {"config_groups", {{"g", {{"weights", {{"group_size", 16}}}}}}}}),
                 {"config_groups.g: weights", "group_size is 16", "32"});
  expect_refused(with(3), {"quantization_config is 3", "an object"});
  const auto nvfp4 = parse(base(), "", R"({"quantization": {"quant_algo": "NVFP4"}})");
  ASSERT_FALSE(nvfp4.ok());
  EXPECT_THAT(nvfp4.status().message(), HasSubstr("quant_algo is 'NVFP4', wanted 'MXFP8'"));
}

TEST(ModelConfig, AnotherArchitectureIsRefusedByName) {
  expect_refused({{"architectures", {"LlamaForCausalLM"}}},
                 {"'LlamaForCausalLM'", "'Qwen3MoeForCausalLM'"});
  expect_refused({{"model_type", "qwen2_moe"}}, {"'qwen2_moe'", "'qwen3_moe'"});
  expect_refused({{"architectures", {"Qwen3MoeForCausalLM", "Other"}}}, {"Other"});
  expect_refused({{"architectures", nullptr}, {"model_type", nullptr}}, {"model_type"});
}

TEST(ModelConfig, WhatTheModelCannotDoIsRefused) {
  expect_refused({{"hidden_act", "gelu"}}, {"hidden_act is 'gelu'", "'silu'"});
  expect_refused({{"attention_bias", true}}, {"attention_bias is true", "false"});
  expect_refused({{"use_sliding_window", true}}, {"use_sliding_window is true", "false"});
  expect_refused({{"rope_parameters", {{"rope_type", "yarn"}}}}, {"'yarn'", "'default'"});
  expect_refused({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}},
                 {"rope_scaling", "'linear'"});
  expect_refused({{"rope_scaling", {{"factor", 2.0}}}}, {"rope_scaling"});
  expect_refused({{"rope_parameters", {{"partial_rotary_factor", 0.5}}}},
                 {"partial_rotary_factor"});
  expect_refused({{"num_experts", 513}, {"num_local_experts", 513}}, {"num_experts is 513", "512"});
  expect_refused({{"num_local_experts", 32}, {"num_experts_per_tok", 17}},
                 {"num_experts_per_tok is 17", "from 1 to 16"});
}

TEST(ModelConfig, MissingKeysAreNamed) {
  for (const char* key : {"hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "moe_intermediate_size", "num_local_experts",
                          "num_experts_per_tok", "max_position_embeddings", "rms_norm_eps"}) {
    expect_refused({{key, nullptr}}, {std::string(key) + " is missing", "wanted"});
  }
  expect_refused({{"rope_parameters", {{"rope_theta", nullptr}}}}, {"rope_theta is missing"});
  expect_refused({{"mlp_only_layers", {0}}, {"intermediate_size", nullptr}},
                 {"intermediate_size is missing"});
}

TEST(ModelConfig, WrongTypesAndNonsenseValuesAreShown) {
  expect_refused({{"hidden_size", "64"}}, {"hidden_size is \"64\"", "an integer"});
  expect_refused({{"hidden_size", 64.5}}, {"hidden_size is 64.5"});
  expect_refused({{"hidden_size", 0}}, {"hidden_size is 0", "from 1 to"});
  expect_refused({{"hidden_size", -64}}, {"hidden_size is -64"});
  expect_refused({{"vocab_size", 18446744073709551615u}}, {"vocab_size is 18446744073709551615"});
  expect_refused({{"vocab_size", {1, 2}}}, {"vocab_size is a list of 2"});
  expect_refused({{"num_key_value_heads", 3}}, {"num_key_value_heads is 3", "divisor", "4"});
  expect_refused({{"head_dim", 33}}, {"head_dim is 33", "even"});
  expect_refused({{"head_dim", 1024}}, {"head_dim is 1024", "512"});
  expect_refused({{"num_experts_per_tok", 9}}, {"num_experts_per_tok is 9", "from 1 to 8"});
  expect_refused({{"num_experts", 4}}, {"num_experts is 4", "one value"});
  expect_refused({{"rms_norm_eps", 0.0}}, {"rms_norm_eps is 0.0"});
  expect_refused({{"rope_theta", 5.0}}, {"rope_theta", "one value"});
  expect_refused({{"tie_word_embeddings", 1}}, {"tie_word_embeddings is 1", "true or false"});
  expect_refused({{"mlp_only_layers", {3}}}, {"mlp_only_layers is 3", "from 0 to 2"});
  expect_refused({{"mlp_only_layers", 0}}, {"mlp_only_layers is 0", "a list"});
  expect_refused({{"decoder_sparse_step", 0}}, {"decoder_sparse_step is 0"});
}

TEST(ModelConfig, TextThatIsNoJsonObjectIsRefusedByFile) {
  for (const char* bad : {"", "{", "[]", "nul", "{\"a\": 1e999}"}) {
    const auto result = parse_model_config(bad, "", "");
    ASSERT_FALSE(result.ok()) << bad;
    EXPECT_THAT(result.status().message(), HasSubstr("config.json"));
  }
  EXPECT_THAT(parse(base(), "[").status().message(), HasSubstr("generation_config.json"));
  EXPECT_THAT(parse(base(), "", "7").status().message(), HasSubstr("hf_quant_config.json"));
}

// A parser that keeps the last one would run another model than the one that was read.
TEST(ModelConfig, AKeyThatComesTwiceIsRefusedByName) {
  std::string twice = base().dump();
  twice.insert(1, R"("hidden_size": 32, )");
  EXPECT_THAT(parse_model_config(twice, "", "").status().message(),
              AllOf(HasSubstr("config.json"), HasSubstr("\"hidden_size\" comes twice")));
  EXPECT_THAT(
      parse(base(), R"({"eos_token_id": 1, "eos_token_id": 2})").status().message(),
      AllOf(HasSubstr("generation_config.json"), HasSubstr("\"eos_token_id\" comes twice")));
}

TEST(ModelConfig, DeepNestingIsRefusedWithoutUsingTheStack) {
  const std::string deep = std::string(1'000'000, '[');
  EXPECT_THAT(parse_model_config("{\"a\":" + deep, "", "").status().message(),
              AllOf(HasSubstr("config.json"), HasSubstr("nested deeper than")));
}

}  // namespace
}  // namespace warproll
