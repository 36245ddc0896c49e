#include "rollout/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "test_tokenizers.h"

namespace warproll::testing {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kBothSpellings[] = {"bpe-tokenizer", "bpe-tokenizer-string-merges"};

TEST(Tokenizer, EncodesAllGoldenStringsAsTransformersDoesWithBothSpellingsOfMerges) {
  const json golden = golden_json("bpe-tokenizer/golden.json");
  ASSERT_EQ(golden.size(), 200u);
  for (const char* directory : kBothSpellings) {
    const auto tokenizer = golden_tokenizer(directory);
    for (const json& entry : golden) {
      EXPECT_EQ(tokenizer->encode(entry["text"].get<std::string>()).value(),
                entry["ids"].get<std::vector<int32_t>>())
          << directory << ": " << entry["text"];
    }
  }
}

TEST(Tokenizer, DecodesAllGoldenIdsAsTransformersDoesWithSpecialTokensKept) {
  const json golden = golden_json("bpe-tokenizer/golden.json");
  ASSERT_EQ(golden.size(), 200u);
  for (const char* directory : kBothSpellings) {
    const auto tokenizer = golden_tokenizer(directory);
    for (const json& entry : golden) {
      EXPECT_EQ(tokenizer->decode(entry["ids"].get<std::vector<int32_t>>()), entry["decoded"])
          << directory;
    }
  }
}

TEST(Tokenizer, EncodesThePromptsOfTheArithmeticModelsAndDecodesTheirAnswers) {
  for (const char* model : {"arith-v1", "arith-v2", "arith-v3"}) {
    const auto tokenizer = golden_tokenizer(model);
    EXPECT_EQ(tokenizer->vocab_size(), 259);
    EXPECT_THAT(tokenizer->encode("946+89=").value(), ElementsAre(24, 19, 21, 10, 23, 24, 28));
    int num_right = 0;
    const json golden = golden_json(std::string(model) + "_golden.json");
    ASSERT_EQ(golden["problems"].size(), 256u);
    for (const json& problem : golden["problems"]) {
      const auto prompt = problem["prompt"].get<std::string>();
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(prompt).value()), prompt);
      const auto ids = problem["greedy_ids"].get<std::vector<int32_t>>();
      num_right += tokenizer->decode(ids, {.skip_special = true}) == problem["answer"] ? 1 : 0;
    }
    EXPECT_DOUBLE_EQ(num_right / 256.0, golden["greedy_accuracy"].get<double>());
  }
}

TEST(Tokenizer, SpecialTokensAreOrdinaryTextWithoutMatchSpecialButOtherAddedTokensAreFound) {
  const auto tokenizer = load(byte_tokenizer_json());
  EXPECT_THAT(tokenizer->encode("a<|im_end|><think>b").value(), ElementsAre('a', 257, 258, 'b'));
  EXPECT_THAT(tokenizer->encode("<|im_end|><think>", {.match_special = false}).value(),
              ElementsAre('<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>', 258));
}

TEST(Tokenizer, TheLongestOfTheAddedTokensThatBeginAtTheSamePlaceIsTaken) {
  json file = byte_tokenizer_json();
  json longer = file["added_tokens"][2];
  longer["id"] = 259;
  longer["content"] = "<think>>";
  file["added_tokens"].push_back(longer);
  EXPECT_THAT(load(file)->encode("<think><think>>>").value(), ElementsAre(258, 259, '>'));
}

TEST(Tokenizer, ANormalizedAddedTokenIsFoundInTheNormalizedText) {
  json file = byte_tokenizer_json();
  file["normalizer"] = {{"type", "NFC"}};
  json token = file["added_tokens"][2];
  token["id"] = 259;
  token["content"] = "caf\u00e9";
  token["normalized"] = true;
  file["added_tokens"].push_back(token);
  EXPECT_THAT(load(file)->encode("cafe\u0301!").value(), ElementsAre(259, '!'));
  file["added_tokens"][3]["normalized"] = false;
  EXPECT_THAT(load(file)->encode("cafe\u0301!").value(),
              ElementsAre('c', 'a', 'f', 0xC3, 0xA9, '!'));
}

TEST(Tokenizer, IgnoreMergesTakesAWholeWordThatMergesCannotReach) {
  json file = byte_tokenizer_json();
  file["model"]["vocab"]["word"] = 300;
  EXPECT_THAT(load(file)->encode("word").value(), ElementsAre('w', 'o', 'r', 'd'));
  file["model"]["ignore_merges"] = true;
  EXPECT_THAT(load(file)->encode("word words").value(),
              ElementsAre(300, ' ', 'w', 'o', 'r', 'd', 's'));
}

TEST(Tokenizer, ByteLevelSplitsByGpt2sPatternOnlyWithUseRegex) {
  json file = byte_tokenizer_json();
  file["model"]["vocab"]["a!"] = 300;
  file["model"]["merges"] = {"a !"};
  EXPECT_THAT(load(file)->encode("a!").value(), ElementsAre('a', '!'));
  file["pre_tokenizer"]["use_regex"] = false;
  EXPECT_THAT(load(file)->encode("a!").value(), ElementsAre(300));
}

TEST(Tokenizer, MergesByRankThenFromTheLeft) {
  json file = byte_tokenizer_json();
  for (const char* token : {"ab", "bc", "abc", "aa", "aaa"}) {
    file["model"]["vocab"][token] = 256 + file["model"]["vocab"].size();
  }
  const auto id = [&](const char* token) { return file["model"]["vocab"][token].get<int32_t>(); };
  file["model"]["merges"] = {"b c", "a b", "a bc", "a a", "aa a"};
  const auto tokenizer = load(file);
  EXPECT_THAT(tokenizer->encode("abc").value(), ElementsAre(id("abc")));
  EXPECT_THAT(tokenizer->encode("abab").value(), ElementsAre(id("ab"), id("ab")));
  EXPECT_THAT(tokenizer->encode("aaaaa").value(), ElementsAre(id("aa"), id("aaa")));
}

TEST(Tokenizer, IdsWithoutATokenDecodeToNothing) {
  const auto tokenizer = load(byte_tokenizer_json());
  const std::vector<int32_t> ids = {'a', 259, 271, -1, INT32_MAX, INT32_MIN, 'b'};
  EXPECT_EQ(tokenizer->decode(ids), "ab");
  EXPECT_EQ(tokenizer->token_bytes(259), "");
  EXPECT_FALSE(tokenizer->is_special(259));
  EXPECT_FALSE(tokenizer->is_special(-1));
}

TEST(Tokenizer, SkipSpecialLeavesOutSpecialTokensOnly) {
  const auto tokenizer = load(byte_tokenizer_json());
  const std::vector<int32_t> ids = {256, 'a', 258, 257};
  EXPECT_EQ(tokenizer->decode(ids), "<|im_start|>a<think><|im_end|>");
  EXPECT_EQ(tokenizer->decode(ids, {.skip_special = true}), "a<think>");
}

TEST(Tokenizer, InvalidUtf8IsRefusedWithItsByteAndOffset) {
  const auto tokenizer = load(byte_tokenizer_json());
  const std::pair<std::string, std::string> cases[] = {
      {"ab\xFFz", "0xFF at offset 2"},       {"\xC0\x80", "0xC0 at offset 0"},
      {"x\xED\xA0\x80", "0xED at offset 1"}, {"\xF4\x90\x80\x80", "0xF4 at offset 0"},
      {"ok \xE2\x82", "0xE2 at offset 3"},   {"\x80", "0x80 at offset 0"}};
  for (const auto& [text, wanted] : cases) {
    const auto result = tokenizer->encode(text);
    ASSERT_FALSE(result.ok());
    EXPECT_THAT(result.status().message(), HasSubstr(wanted));
  }
}

TEST(Tokenizer, NamesItsTokensBothWays) {
  const auto tokenizer = golden_tokenizer("bpe-tokenizer");
  EXPECT_EQ(tokenizer->id_of_token("<|im_start|>"), 2001);
  EXPECT_EQ(tokenizer->id_of_token("\u0120\u0120"), 256);
  EXPECT_EQ(tokenizer->id_of_token("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer->token_bytes(256), "  ");
  EXPECT_EQ(tokenizer->vocab_size(), 2007);
  EXPECT_TRUE(tokenizer->is_special(2002));
  EXPECT_FALSE(tokenizer->is_special(2005));
}

TEST(Tokenizer, DigestIsTheSameForBothSpellingsOfMerges) {
  const Digest digest = golden_tokenizer("bpe-tokenizer")->digest();
  EXPECT_EQ(digest, golden_tokenizer("bpe-tokenizer-string-merges")->digest());
  EXPECT_NE(digest, Digest{});
  EXPECT_NE(digest, golden_tokenizer("arith-v1")->digest());
}

TEST(Tokenizer, DigestChangesWithEverythingThatDecidesTheIds) {
  const json file = byte_tokenizer_json();
  std::vector<Digest> digests = {load(file)->digest()};
  const auto with = [&](auto edit) {
    json edited = file;
    edit(edited);
    digests.push_back(load(edited)->digest());
  };
  with([](json& f) { f["model"]["vocab"]["ab"] = 300; });
  with([](json& f) { f["model"]["vocab"]["ab"] = 301; });
  with([](json& f) { f["model"]["vocab"]["ab"] = 300, f["model"]["merges"] = {"a b"}; });
  with([](json& f) { f["model"]["ignore_merges"] = true; });
  with([](json& f) { f["normalizer"] = {{"type", "NFC"}}; });
  with([](json& f) { f["pre_tokenizer"]["use_regex"] = false; });
  with([](json& f) { f["added_tokens"][0]["special"] = false; });
  with([](json& f) { f["added_tokens"][0]["normalized"] = true; });
  with([](json& f) { f["added_tokens"][0]["content"] = "<|start|>"; });
  with([](json& f) { f["added_tokens"][0]["id"] = 260; });
  for (size_t i = 0; i < digests.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(digests[i], digests[j]) << i << " and " << j;
  }
}

TEST(Tokenizer, EncodesAndDecodesOnManyThreadsAtOnce) {
  const json golden = golden_json("bpe-tokenizer/golden.json");
  const auto tokenizer = golden_tokenizer("bpe-tokenizer");
  std::vector<int> num_right(4);
  std::vector<std::thread> threads;
  for (int& right : num_right) {
    threads.emplace_back([&] {
      for (const json& entry : golden) {
        const auto ids = tokenizer->encode(entry["text"].get<std::string>());
        right += ids.ok() && *ids == entry["ids"].get<std::vector<int32_t>>() &&
                         tokenizer->decode(*ids) == entry["decoded"]
                     ? 1
                     : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(num_right, ::testing::Each(200));
}

}  // namespace
}  // namespace warproll::testing
