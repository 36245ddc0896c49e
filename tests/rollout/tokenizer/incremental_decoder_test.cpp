#include "rollout/tokenizer/incremental_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "rollout/tokenizer/utf8_stream.h"
#include "test_tokenizers.h"

namespace warproll::testing {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> pieces_of(IncrementalDecoder decoder, const std::vector<int32_t>& ids) {
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(decoder.feed(id));
  pieces.push_back(decoder.flush());
  return pieces;
}

// In the byte tokenizer an id below 256 is that byte.
TEST(IncrementalDecoder, HoldsACharacterBackUntilItIsComplete) {
  const IncrementalDecoder decoder(load(byte_tokenizer_json()));
  EXPECT_THAT(pieces_of(decoder, {'a', 0xF0, 0x9F, 0x98, 0x80, 'b'}),
              ElementsAre("a", "", "", "", "\U0001F600", "b", ""));
}

TEST(IncrementalDecoder, GivesAReplacementForEachMaximalIllFormedSubpart) {
  const IncrementalDecoder decoder(load(byte_tokenizer_json()));
  // The example of Unicode 15, Table 3-8 and 3-11.
  EXPECT_THAT(pieces_of(decoder, {0xC0, 0xAF, 0xE0, 0x80, 0xBF}),
              ElementsAre("\uFFFD", "\uFFFD", "", "\uFFFD\uFFFD", "\uFFFD", ""));
  EXPECT_THAT(pieces_of(decoder, {0xE1, 0x80, 0xE2, 0xF0, 0x91, 0x92, 0xF1, 0xBF, 'A'}),
              ElementsAre("", "", "\uFFFD", "\uFFFD", "", "", "\uFFFD", "", "\uFFFDA", ""));
}

TEST(IncrementalDecoder, FlushTurnsAnIncompleteTailIntoOneReplacement) {
  const IncrementalDecoder decoder(load(byte_tokenizer_json()));
  EXPECT_THAT(pieces_of(decoder, {'x', 0xF0, 0x9F, 0x98}), ElementsAre("x", "", "", "", "\uFFFD"));
}

TEST(IncrementalDecoder, StartsAnewAfterFlush) {
  IncrementalDecoder decoder(load(byte_tokenizer_json()));
  EXPECT_EQ(decoder.feed(0xC3), "");
  EXPECT_EQ(decoder.flush(), "\uFFFD");
  EXPECT_EQ(decoder.feed('a'), "a");
  EXPECT_EQ(decoder.flush(), "");
}

TEST(IncrementalDecoder, ASpecialTokenEndsAnIncompleteCharacterUnlessItIsSkipped) {
  const auto tokenizer = load(byte_tokenizer_json());
  EXPECT_THAT(pieces_of(IncrementalDecoder(tokenizer), {0xC3, 257, 0xA9}),
              ElementsAre("", "\uFFFD<|im_end|>", "\uFFFD", ""));
  EXPECT_THAT(pieces_of(IncrementalDecoder(tokenizer, {.skip_special = true}), {0xC3, 257, 0xA9}),
              ElementsAre("", "", "\u00e9", ""));
}

TEST(IncrementalDecoder, ACopyGoesItsOwnWay) {
  IncrementalDecoder decoder(load(byte_tokenizer_json()));
  EXPECT_EQ(decoder.feed(0xC3), "");
  IncrementalDecoder copy = decoder;
  EXPECT_EQ(copy.feed(0xA9), "\u00e9");
  EXPECT_EQ(decoder.feed(0xA8), "\u00e8");
}

TEST(IncrementalDecoder, PiecesOfRandomIdsJoinToTheDecodingOfAllAndAreUtf8) {
  const auto tokenizer = golden_tokenizer("bpe-tokenizer");
  std::mt19937 random(20261129);
  // Bytes are the ids below 256; the ids past 2006 have no token.
  std::uniform_int_distribution<int32_t> any_id(0, 2050);
  std::uniform_int_distribution<int32_t> byte_id(90, 255);
  for (int round = 0; round < 3000; ++round) {
    const DecodeOptions options{.skip_special = round % 2 == 1};
    std::vector<int32_t> ids(random() % 40);
    for (int32_t& id : ids) id = random() % 4 == 0 ? any_id(random) : byte_id(random);
    std::string joined;
    for (const std::string& piece : pieces_of(IncrementalDecoder(tokenizer, options), ids)) {
      ASSERT_EQ(find_invalid_utf8(piece), std::nullopt);
      joined += piece;
    }
    ASSERT_EQ(joined, tokenizer->decode(ids, options)) << ::testing::PrintToString(ids);
  }
}

}  // namespace
}  // namespace warproll::testing
