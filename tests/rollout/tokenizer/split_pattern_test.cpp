#include "rollout/tokenizer/split_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rollout/tokenizer/pattern_dialect.h"

namespace warproll::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::vector<std::string> split(const std::string& pattern, const std::string& text) {
  const SplitPattern compiled = SplitPattern::compile(pattern).value();
  std::vector<std::string_view> pieces;
  const Status status = compiled.split(text, &pieces);
  if (!status.ok()) throw std::runtime_error(status.to_string());
  return {pieces.begin(), pieces.end()};
}

std::string refusal_of(const std::string& pattern) {
  const auto result = SplitPattern::compile(pattern);
  return result.ok() ? "" : result.status().message();
}

TEST(SplitPattern, CutsTextAsQwenDoes) {
  EXPECT_THAT(split(kQwenPattern, "I'Ll  take 12 caf\u00e9s!!\n\n  ok "),
              ElementsAre("I", "'Ll", " ", " take", " ", "1", "2", " caf\u00e9s", "!!\n\n", " ",
                          " ok", " "));
}

TEST(SplitPattern, WhatLiesBetweenMatchesIsAPieceOfItsOwn) {
  EXPECT_THAT(split(R"(\d+)", "ab12c3"), ElementsAre("ab", "12", "c", "3"));
  EXPECT_THAT(split(R"(\d+)", "none"), ElementsAre("none"));
  EXPECT_THAT(split(R"(\d+)", ""), ElementsAre());
}

TEST(SplitPattern, WhiteSpaceIsUnicodesSoThatU180EIsNoneAndU0085IsSome) {
  EXPECT_THAT(split(R"(\s+)", "a\u180Eb"), ElementsAre("a\u180Eb"));
  EXPECT_THAT(split(R"(\s+)", "a\u0085\u00A0\u2003\u3000b"),
              ElementsAre("a", "\u0085\u00A0\u2003\u3000", "b"));
  EXPECT_THAT(split(R"([^\s]+)", "\u180E \u2028x"), ElementsAre("\u180E", " \u2028", "x"));
  EXPECT_THAT(split(R"(\S+)", "\u180E \u2028x"), ElementsAre("\u180E", " \u2028", "x"));
}

TEST(SplitPattern, ADotDoesNotMatchANewline) {
  EXPECT_THAT(split(".+", "ab\r\ncd"), ElementsAre("ab\r", "\n", "cd"));
}

TEST(SplitPattern, PossessiveAndLazyQuantifiersAndCountsWork) {
  EXPECT_THAT(split(R"(\p{N}{1,3})", "12345"), ElementsAre("123", "45"));
  EXPECT_THAT(split(R"([^\p{L}]?+\p{L}++)", "!ab"), ElementsAre("!ab"));
  EXPECT_THAT(split("ab+?", "abbb"), ElementsAre("ab", "bb"));
}

TEST(SplitPattern, ALongMatchDoesNotOverflowTheMatchersStack) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += "ab";
  EXPECT_THAT(split("(?:(a)|(b))+", text), ElementsAre(text));
}

TEST(SplitPattern, EndlessBacktrackingIsAnErrorThatSaysSo) {
  const SplitPattern pattern = SplitPattern::compile("(?:a|a|ab)+[cd]").value();
  std::vector<std::string_view> pieces;
  const std::string text(60, 'a');
  const Status status = pattern.split(text, &pieces);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("60 bytes"), HasSubstr("match limit exceeded")));
}

TEST(SplitPattern, RefusesAPatternThatCanMatchNothing) {
  EXPECT_THAT(refusal_of(R"(\p{L}*)"), HasSubstr("can match nothing"));
}

TEST(SplitPattern, RefusesByNameWhatOnigurumaAndPcre2ReadDifferently) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(\w+)", R"('\w' at byte 0)"},
      {R"(a\b)", R"('\b' at byte 1)"},
      {R"(\h+)", R"('\h' at byte 0)"},
      {R"((a)\1)", R"('\1' at byte 3)"},
      {R"(\p{Han}+)", R"('\p{Han}' at byte 0, wanted a general category)"},
      {R"(\p{^L})", R"('\p{^L}' at byte 0)"},
      {R"(\pL)", R"('\pL' at byte 0)"},
      {R"(\xZ)", R"('\xZ' at byte 0, wanted \xHH)"},
      {R"(\x{})", R"('\x{}' at byte 0)"},
      {"^a", "'^' at byte 0, wanted no anchors"},
      {"a$", "'$' at byte 1, wanted no anchors"},
      {"[[:alpha:]]", "'[' at byte 1, wanted no '[' inside a class"},
      {"[a-z&&[^b]]", "'&&' at byte 4"},
      {"[]a]", "'[]' at byte 0"},
      {"[^]a]", "'[^]' at byte 0"},
      {"(?m:a)", "'(?m:' at byte 0"},
      {"(?<name>a)", "'(?<n' at byte 0"},
      {"(*UTF)a", "'(*' at byte 0"},
      {"a{,3}", "'{,3}' at byte 1"},
      {"a{2}+", "'{2}+' at byte 1"},
      {"a{x}", "'{x}' at byte 1"},
      {"a\\", "'\\' at byte 1"},
      {"[a", "a '[' without its ']'"},
      {"", "a pattern of 0 bytes"},
  };
  for (const auto& [pattern, wanted] : cases) {
    EXPECT_THAT(refusal_of(pattern), HasSubstr(wanted)) << pattern;
  }
  EXPECT_THAT(refusal_of(std::string(8193, 'a')), HasSubstr("8193 bytes, wanted 1..8192"));
}

TEST(PatternDialect, PassesOnWhatBothReadTheSame) {
  for (const char* pattern :
       {R"(a|b.c*d+e?)", R"((?:a)(?i:b)(?=c)(?!d)(?<=e)(?<!f)(?>g)(h))", R"([^a-z\]\-]\r\n\t\f)",
        R"(\d\D\p{Lu}\P{M}\x41\x{1F600})", R"(a{2}b{2,}c{2,3}?\(\)\.\\)", "[\u4e00-\u9fa5]+"}) {
    EXPECT_EQ(to_pcre2_pattern(pattern).value(), pattern);
  }
}

}  // namespace
}  // namespace warproll::testing
