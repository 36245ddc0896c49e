// What a tokenizer.json may not say: each refusal names the place, what it got, what it wanted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "rollout/tokenizer/tokenizer.h"
#include "test_tokenizers.h"
#include "tests/golden_dir.h"

namespace warproll::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Malformed {
  const char* name;
  std::function<void(json&)> edit;
  std::vector<std::string> wanted;  // substrings of the refusal
};

void expect_refusals(const std::vector<Malformed>& cases) {
  for (const Malformed& malformed : cases) {
    json file = byte_tokenizer_json();
    ASSERT_EQ(refusal(file), "") << "the file is accepted before the edit";
    malformed.edit(file);
    const std::string message = refusal(file);
    EXPECT_THAT(message, StartsWith("test.json: ")) << malformed.name;
    for (const std::string& wanted : malformed.wanted) {
      EXPECT_THAT(message, HasSubstr(wanted)) << malformed.name;
    }
  }
}

json split(const std::string& pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}
json byte_level() {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
}
json sequence(std::vector<json> steps) {
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

TEST(TokenizerJson, RefusesOtherModelsAndOptionsOfThemByName) {
  expect_refusals({
      {"model missing", [](json& f) { f.erase("model"); }, {"model is null", "wanted an object"}},
      {"model type",
       [](json& f) { f["model"]["type"] = "WordPiece"; },
       {"model.type is \"WordPiece\", wanted \"BPE\""}},
      {"dropout",
       [](json& f) { f["model"]["dropout"] = 0.1; },
       {"model.dropout is 0.1, wanted null or 0"}},
      {"prefix",
       [](json& f) { f["model"]["continuing_subword_prefix"] = "##"; },
       {"model.continuing_subword_prefix is \"##\""}},
      {"suffix",
       [](json& f) { f["model"]["end_of_word_suffix"] = "</w>"; },
       {"model.end_of_word_suffix is \"</w>\""}},
      {"byte_fallback",
       [](json& f) { f["model"]["byte_fallback"] = true; },
       {"model.byte_fallback is true, wanted false"}},
      {"ignore_merges",
       [](json& f) { f["model"]["ignore_merges"] = "yes"; },
       {"model.ignore_merges is \"yes\", wanted true or false"}},
      {"version", [](json& f) { f["version"] = "2.0"; }, {"version is \"2.0\", wanted \"1.0\""}},
      {"truncation",
       [](json& f) { f["truncation"] = json::object(); },
       {"truncation is an object, wanted null"}},
      {"padding", [](json& f) { f["padding"] = true; }, {"padding is true, wanted null"}},
  });
}

TEST(TokenizerJson, RefusesAVocabularyThatIsNotOneToOneOrLacksAByte) {
  expect_refusals({
      {"vocab type",
       [](json& f) { f["model"]["vocab"] = json::array(); },
       {"model.vocab is an array of 0, wanted an object"}},
      {"duplicate id",
       [](json& f) { f["model"]["vocab"]["zz"] = 65; },
       {"model.vocab has id 65 twice", "\"A\"", "\"zz\"", "wanted distinct ids"}},
      {"negative id",
       [](json& f) { f["model"]["vocab"]["zz"] = -1; },
       {"model.vocab[\"zz\"] is -1, wanted an integer 0..4194303"}},
      {"huge id", [](json& f) { f["model"]["vocab"]["zz"] = 4194304; }, {"is 4194304, wanted"}},
      {"huger id",
       [](json& f) { f["model"]["vocab"]["zz"] = UINT64_MAX; },
       {"is 18446744073709551615, wanted"}},
      {"float id", [](json& f) { f["model"]["vocab"]["zz"] = 300.5; }, {"is 300.5, wanted"}},
      {"text id", [](json& f) { f["model"]["vocab"]["zz"] = "300"; }, {"is \"300\", wanted"}},
      {"missing byte",
       [](json& f) { f["model"]["vocab"].erase("\u0120"); },
       {"model.vocab has no token for the byte 32 (\"\u0120\"), wanted all 256"}},
      {"empty",
       [](json& f) { f["model"]["vocab"] = json::object(), f["added_tokens"].clear(); },
       {"no token for the byte 0"}},
  });
}

TEST(TokenizerJson, RefusesMergesThatNameUnknownTokensOrComeTwice) {
  const auto merges = [](json value) {
    return [value](json& f) {
      f["model"]["vocab"]["ab"] = 300;
      f["model"]["merges"] = value;
    };
  };
  expect_refusals({
      {"missing", [](json& f) { f["model"].erase("merges"); }, {"model.merges is null, wanted an"}},
      {"unknown left", merges({"a b", "zz b"}), {"model.merges[1] names \"zz\"", "not in"}},
      {"unknown right",
       merges(json::array({json::array({"a", "zz"})})),
       {"model.merges[0] names \"zz\""}},
      {"unknown result", merges({"b a"}), {"model.merges[0] names \"ba\""}},
      {"twice", merges({"a b", "a b"}), {"model.merges[1] merges \"a\" and \"b\"", "distinct"}},
      {"twice, both ways",
       merges(json::array({"a b", json::array({"a", "b"})})),
       {"model.merges[1]", "distinct"}},
      {"no space", merges({"ab"}), {"model.merges[0] is \"ab\", wanted \"a b\" with one space"}},
      {"two spaces", merges({"a b c"}), {"is \"a b c\""}},
      {"three", merges(json::array({json::array({"a", "b", "c"})})), {"is an array of 3"}},
      {"number", merges(json::array({1})), {"model.merges[0] is 1"}},
      {"pair of numbers",
       merges(json::array({json::array({1, 2})})),
       {"model.merges[0] is an array of 2"}},
  });
}

TEST(TokenizerJson, RefusesAddedTokensItCannotMatchAsTransformersDoes) {
  const auto added = [](const char* key, json value) {
    return [key, value](json& f) { f["added_tokens"][1][key] = value; };
  };
  expect_refusals({
      {"type", [](json& f) { f["added_tokens"] = 1; }, {"added_tokens is 1, wanted an array"}},
      {"entry", [](json& f) { f["added_tokens"][1] = 1; }, {"added_tokens[1] is 1"}},
      {"single_word", added("single_word", true), {"added_tokens[1].single_word is true"}},
      {"lstrip", added("lstrip", true), {"added_tokens[1].lstrip is true, wanted false"}},
      {"rstrip", added("rstrip", true), {"added_tokens[1].rstrip is true, wanted false"}},
      {"special", added("special", nullptr), {"added_tokens[1].special is null, wanted true or"}},
      {"id missing", added("id", nullptr), {"added_tokens[1].id is null, wanted an integer"}},
      {"huge id", added("id", 1LL << 40), {"added_tokens[1].id is 1099511627776"}},
      {"id twice", added("id", 256), {"added_tokens[1].id is 256", "wanted distinct"}},
      {"text twice", added("content", "<|im_start|>"), {"added_tokens[1].content", "distinct"}},
      {"empty", added("content", ""), {"added_tokens[1].content is empty"}},
      {"id of the vocabulary",
       added("id", 65),
       {"added_tokens[1]", "\"<|im_end|>\"", "\"A\"", "wanted distinct ids"}},
      {"other id than in the vocabulary",
       [](json& f) { f["model"]["vocab"]["<|im_end|>"] = 300; },
       {"added_tokens[1]", "has id 300 in model.vocab", "257"}},
  });
}

TEST(TokenizerJson, AcceptsAnAddedTokenThatIsInTheVocabularyWithTheSameId) {
  json file = byte_tokenizer_json();
  file["model"]["vocab"]["<|im_end|>"] = 257;
  EXPECT_EQ(load(file)->encode("<|im_end|>").value(), std::vector<int32_t>{257});
}

TEST(TokenizerJson, RefusesOtherNormalizersDecodersAndPostProcessorsByName) {
  const auto with = [](const char* key, json value) {
    return [key, value](json& f) { f[key] = value; };
  };
  const json lowercase = {{"type", "Lowercase"}};
  expect_refusals({
      {"normalizer", with("normalizer", lowercase), {"normalizer.type is \"Lowercase\"", "NFC"}},
      {"normalizer type", with("normalizer", 1), {"normalizer is 1, wanted an object"}},
      {"normalizer without type", with("normalizer", json::object()), {"normalizer.type is null"}},
      {"decoder",
       with("decoder", {{"type", "Metaspace"}}),
       {"decoder.type is \"Metaspace\", wanted \"ByteLevel\""}},
      {"no decoder", with("decoder", nullptr), {"decoder is null"}},
      {"post_processor",
       with("post_processor", {{"type", "TemplateProcessing"}}),
       {"post_processor.type is \"TemplateProcessing\"", "adds tokens"}},
  });
}

TEST(TokenizerJson, RefusesOtherPreTokenizersByName) {
  const auto pre_tokenizer = [](json value) {
    return [value](json& f) { f["pre_tokenizer"] = value; };
  };
  json merged = split("a");
  merged["behavior"] = "MergedWithNext";
  json inverted = split("a");
  inverted["invert"] = true;
  json literal = split("a");
  literal["pattern"] = {{"String", " "}};
  json prefixed = byte_level();
  prefixed["add_prefix_space"] = true;
  const std::string first = "pre_tokenizer.pretokenizers[0]";
  expect_refusals({
      {"none", pre_tokenizer(nullptr), {"pre_tokenizer is null, wanted an object"}},
      {"Whitespace",
       pre_tokenizer({{"type", "Whitespace"}}),
       {"pre_tokenizer.type is \"Whitespace\", wanted \"ByteLevel\""}},
      {"bare Split", pre_tokenizer(split("a")), {"pre_tokenizer.type is \"Split\""}},
      {"prefix space", pre_tokenizer(prefixed), {"pre_tokenizer.add_prefix_space is true"}},
      {"empty", pre_tokenizer(sequence({})), {"pretokenizers is an array of 0, wanted 1..16"}},
      {"no ByteLevel", pre_tokenizer(sequence({split("a")})), {first + ".type is \"Split\""}},
      {"Digits",
       pre_tokenizer(sequence({{{"type", "Digits"}}, byte_level()})),
       {first + ".type is \"Digits\", wanted \"Split\""}},
      {"behavior",
       pre_tokenizer(sequence({merged, byte_level()})),
       {first + ".behavior is \"MergedWithNext\", wanted \"Isolated\""}},
      {"invert", pre_tokenizer(sequence({inverted, byte_level()})), {first + ".invert is true"}},
      {"String",
       pre_tokenizer(sequence({literal, byte_level()})),
       {first + ".pattern.Regex is null, wanted a string"}},
      {"pattern",
       pre_tokenizer(sequence({split("(a"), byte_level()})),
       {"the pattern \"(a\": PCRE2 says 'missing closing parenthesis' at byte 2"}},
  });
}

TEST(TokenizerJson, AcceptsTheOptionsOfQwensFilesThatChangeNothing) {
  json file = byte_tokenizer_json();
  file["post_processor"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  file["model"]["continuing_subword_prefix"] = "";
  file["model"]["end_of_word_suffix"] = "";
  file["model"].erase("ignore_merges");
  file.erase("padding");
  EXPECT_EQ(refusal(file), "");
}

TEST(TokenizerJson, RefusesEveryTruncationOfAFile) {
  const std::string text = byte_tokenizer_json().dump();
  for (size_t length = 0; length < text.size(); ++length) {
    ASSERT_THAT(refusal_of_text(text.substr(0, length)), HasSubstr("test.json: not JSON"));
  }
}

TEST(TokenizerJson, RefusesWhatIsNotAJsonObject) {
  EXPECT_THAT(refusal_of_text("[]"),
              HasSubstr("the file's value is an array of 0, wanted an object"));
  EXPECT_THAT(refusal_of_text("\"text\""), HasSubstr("the file's value is \"text\""));
  EXPECT_THAT(refusal_of_text("{} {}"), HasSubstr("not JSON"));
  EXPECT_THAT(refusal_of_text("{\"a\": \"\xFF\"}"), HasSubstr("not JSON"));
  EXPECT_THAT(refusal_of_text("{\"a\": 1e999}"), HasSubstr("not JSON"));
}

TEST(TokenizerJson, RefusesDeepNestingWithoutUsingTheStack) {
  const size_t depth = 1'000'000;
  EXPECT_THAT(refusal_of_text(std::string(depth, '[')), HasSubstr("nested deeper than 64 levels"));
  EXPECT_THAT(refusal_of_text(std::string(depth, '[') + std::string(depth, ']')),
              HasSubstr("nested deeper than 64 levels"));
  std::string objects;
  for (size_t i = 0; i < 1000; ++i) objects += "{\"a\":";
  EXPECT_THAT(refusal_of_text(objects), HasSubstr("nested deeper than 64 levels"));
}

TEST(TokenizerJson, RefusesAKeyThatComesTwiceInOneObject) {
  EXPECT_THAT(refusal_of_text(R"({"model": {"vocab": {"a": 1, "b": 2, "a": 3}}})"),
              HasSubstr("the key \"a\" comes twice in one object"));
}

TEST(TokenizerJson, AFileThatIsMissingOrNoFileIsNamed) {
  const auto missing = Tokenizer::from_file("/nonexistent/tokenizer.json");
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("/nonexistent/tokenizer.json"));
  const auto directory = Tokenizer::from_file(golden_dir());
  EXPECT_THAT(directory.status().message(),
              AllOf(HasSubstr(golden_dir()), HasSubstr("not a regular file")));
}

}  // namespace
}  // namespace warproll::testing
