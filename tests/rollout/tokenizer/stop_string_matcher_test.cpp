#include "rollout/tokenizer/stop_string_matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace warproll::testing {
namespace {

using ::testing::HasSubstr;

StopStringMatcher matcher_of(const std::vector<std::string>& stops) {
  return StopStringMatcher::create(stops).value();
}

TEST(StopStringMatcher, FindsAStopStringAcrossPieces) {
  StopStringMatcher matcher = matcher_of({"END"});
  EXPECT_EQ(matcher.feed("textE"), "text");
  EXPECT_EQ(matcher.feed("N"), "");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.feed("D more"), "");
  ASSERT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.matched(), "END");
  EXPECT_EQ(matcher.feed("after"), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopStringMatcher, GivesHeldTextAsSoonAsItCannotBecomeAStopString) {
  StopStringMatcher matcher = matcher_of({"aab"});
  EXPECT_EQ(matcher.feed("aa"), "");
  EXPECT_EQ(matcher.feed("a"), "a");
  EXPECT_EQ(matcher.feed("c"), "aac");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopStringMatcher, FlushGivesWhatWasHeldAndStartsAnew) {
  StopStringMatcher matcher = matcher_of({"ab"});
  EXPECT_EQ(matcher.feed("xa"), "x");
  EXPECT_EQ(matcher.flush(), "a");
  EXPECT_EQ(matcher.feed("b"), "b");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopStringMatcher, OfStopStringsCompleteAtOnePlaceTheLongestCounts) {
  StopStringMatcher matcher = matcher_of({"b", "\nab", "ab"});
  EXPECT_EQ(matcher.feed("x\nab"), "x");
  EXPECT_EQ(matcher.matched(), "\nab");
}

TEST(StopStringMatcher, TheStopStringThatIsCompleteFirstCounts) {
  StopStringMatcher matcher = matcher_of({"abcd", "bc"});
  EXPECT_EQ(matcher.feed("xabcd"), "xa");
  EXPECT_EQ(matcher.matched(), "bc");
}

TEST(StopStringMatcher, WithoutStopStringsPassesEverythingOn) {
  StopStringMatcher matcher;
  EXPECT_EQ(matcher.feed("anything"), "anything");
  EXPECT_EQ(matcher_of({}).feed("anything"), "anything");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopStringMatcher, ACopyGoesItsOwnWay) {
  StopStringMatcher matcher = matcher_of({"ab"});
  EXPECT_EQ(matcher.feed("a"), "");
  StopStringMatcher copy = matcher;
  EXPECT_EQ(copy.feed("b"), "");
  EXPECT_TRUE(copy.stopped());
  EXPECT_EQ(matcher.feed("c"), "ac");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopStringMatcher, RefusesAnEmptyOrIllFormedStopStringByIndex) {
  EXPECT_THAT(StopStringMatcher::create({"ok", ""}).status().message(),
              HasSubstr("stop string 1 is empty"));
  EXPECT_THAT(StopStringMatcher::create({"\xC3"}).status().message(),
              HasSubstr("stop string 0 is not UTF-8"));
}

struct Outcome {
  std::string text;
  bool stopped;
  std::string matched;
  bool operator==(const Outcome&) const = default;
};

// The definition, letter by letter.
Outcome expected_outcome(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string longest;
    for (const std::string& stop : stops) {
      const bool ends_here =
          stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0;
      if (ends_here && stop.size() > longest.size()) longest = stop;
    }
    if (!longest.empty()) return {text.substr(0, end - longest.size()), true, longest};
  }
  return {text, false, ""};
}

// The longest suffix of `text` that begins some stop string.
size_t suspect_suffix(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t length = text.size(); length > 0; --length) {
    for (const std::string& stop : stops) {
      if (text.compare(text.size() - length, length, stop, 0, length) == 0) return length;
    }
  }
  return 0;
}

TEST(StopStringMatcher, EqualsTheDefinitionHoweverTheTextIsCut) {
  std::mt19937 random(20261129);
  const auto random_text = [&](size_t length) {
    std::string text(length, '\0');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  int num_stopped = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops(1 + random() % 3);
    for (std::string& stop : stops) stop = random_text(1 + random() % 7);
    const std::string text = random_text(random() % 40);
    StopStringMatcher matcher = matcher_of(stops);
    std::string emitted;
    for (size_t at = 0; at < text.size();) {
      const size_t length = std::min<size_t>(random() % 5, text.size() - at);
      emitted += matcher.feed(std::string_view(text).substr(at, length));
      at += length;
      if (matcher.stopped()) continue;
      const std::string seen = text.substr(0, at);
      ASSERT_EQ(emitted, seen.substr(0, at - suspect_suffix(seen, stops)));
    }
    emitted += matcher.flush();
    const Outcome got{emitted, matcher.stopped(), matcher.stopped() ? matcher.matched() : ""};
    ASSERT_EQ(got, expected_outcome(text, stops))
        << text << " with " << ::testing::PrintToString(stops);
    num_stopped += matcher.stopped() ? 1 : 0;
  }
  EXPECT_GT(num_stopped, 1000);
  EXPECT_LT(num_stopped, 4900);
}

}  // namespace
}  // namespace warproll::testing
