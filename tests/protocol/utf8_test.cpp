#include "protocol/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace warproll {
namespace {

// Unicode 15, table 3-7, spelled as ranges: the oracle for the decoder's comparisons.
std::string encode(uint32_t code) {
  const auto byte = [](uint32_t value) { return static_cast<char>(value); };
  if (code < 0x80) return {byte(code)};
  if (code < 0x800) return {byte(0xC0 | code >> 6), byte(0x80 | (code & 63))};
  if (code < 0x10000) {
    return {byte(0xE0 | code >> 12), byte(0x80 | (code >> 6 & 63)), byte(0x80 | (code & 63))};
  }
  return {byte(0xF0 | code >> 18), byte(0x80 | (code >> 12 & 63)), byte(0x80 | (code >> 6 & 63)),
          byte(0x80 | (code & 63))};
}

TEST(Utf8, EveryCodePointButSurrogatesIsValid) {
  for (uint32_t code = 0; code < 0x120000; ++code) {
    const bool wanted = code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
    ASSERT_EQ(is_valid_utf8(encode(code)), wanted) << code;
  }
}

TEST(Utf8, OverlongFormsAreInvalid) {
  EXPECT_FALSE(is_valid_utf8("\xC0\x80"));
  EXPECT_FALSE(is_valid_utf8("\xC1\xBF"));
  EXPECT_FALSE(is_valid_utf8("\xE0\x9F\xBF"));
  EXPECT_FALSE(is_valid_utf8("\xF0\x8F\xBF\xBF"));
  EXPECT_FALSE(is_valid_utf8("\xF5\x80\x80\x80"));
}

TEST(Utf8, TruncatedAndStrayBytesAreInvalidAtEveryOffset) {
  for (const std::string bad : {"\x80", "\xC3", "\xE2\x82", "\xF0\x9F\x98", "\xFF"}) {
    for (size_t before = 0; before < 20; ++before) {
      for (size_t after = 0; after < 20; ++after) {
        EXPECT_FALSE(is_valid_utf8(std::string(before, 'a') + bad + std::string(after, 'b')));
      }
    }
  }
}

TEST(Utf8, LongMixedTextIsValid) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += std::string(static_cast<size_t>(i % 11), 'x') + "é漢😀";
  EXPECT_TRUE(is_valid_utf8(text));
  EXPECT_TRUE(is_valid_utf8(""));
}

}  // namespace
}  // namespace warproll
