// decode(encode(x)) is x in normal form C; the oracle is Python's unicodedata.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <stdexcept>

#include "test_tokenizers.h"

namespace warproll::testing {
namespace {

using nlohmann::json;

constexpr int kSeed = 20261129;

json python_oracle() {
  const std::string command = std::string(WARPROLL_TEST_PYTHON) + " " + WARPROLL_SOURCE_DIR +
                              "/tests/rollout/tokenizer/nfc_oracle.py " + std::to_string(kSeed);
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  std::string output;
  std::array<char, 4096> buffer{};
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    output.append(buffer.data(), n);
  }
  if (const int exit_code = pclose(pipe); exit_code != 0) {
    throw std::runtime_error(command + " exits with " + std::to_string(exit_code));
  }
  return json::parse(output);
}

TEST(RoundTrip, DecodingTheIdsOfRandomUnicodeGivesItsNfc) {
  const auto tokenizer = golden_tokenizer("bpe-tokenizer");
  const json texts = python_oracle();
  ASSERT_EQ(texts.size(), 2000u);
  int num_changed = 0;
  for (const json& pair : texts) {
    const auto text = pair[0].get<std::string>();
    const auto nfc = pair[1].get<std::string>();
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(text).value()), nfc) << pair;
    num_changed += text != nfc ? 1 : 0;
  }
  EXPECT_GT(num_changed, 500) << "the texts hardly exercise normalisation";
}

TEST(RoundTrip, DecodingTheIdsOfRandomUnicodeGivesItUnchangedWithoutANormalizer) {
  const auto tokenizer = golden_tokenizer("arith-v1");
  for (const json& pair : python_oracle()) {
    const auto text = pair[0].get<std::string>();
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(text).value()), text) << pair;
  }
}

}  // namespace
}  // namespace warproll::testing
