// docs/protocol.md says what the code does: its byte example, its type numbers, its limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "protocol/chunks.h"
#include "protocol/codec.h"
#include "protocol/message_types.h"

namespace warproll {
namespace {

using ::testing::HasSubstr;

std::string document() {
  std::ifstream file(WARPROLL_SOURCE_DIR "/docs/protocol.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The bytes of a hex dump: up to sixteen pairs of digits a line, an optional word before them.
Bytes bytes_of_dump(const std::string& dump) {
  Bytes bytes;
  std::istringstream lines(dump);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(8));
    std::string word;
    for (int i = 0; i < 16 && words >> word; ++i) {
      bytes.push_back(static_cast<std::byte>(std::stoi(word, nullptr, 16)));
    }
  }
  return bytes;
}

TEST(ProtocolDocument, TheByteExampleIsWhatTheCodecWrites) {
  const std::string text = document();
  const size_t begin = text.find("header  57 52 50 4c");
  ASSERT_NE(begin, std::string::npos);
  const Bytes documented = bytes_of_dump(text.substr(begin, text.find("```", begin) - begin));
  Envelope envelope;
  for (size_t i = 0; i < envelope.producer_id.size(); ++i) {
    envelope.producer_id[i] = static_cast<uint8_t>(0xA0 + i);
  }
  envelope.epoch = 3;
  const auto written = encode_message(envelope, Ack{"run-1", 7, 7, 263, uint64_t{1} << 28});
  ASSERT_TRUE(written.ok());
  EXPECT_EQ(documented, *written);
}

TEST(ProtocolDocument, EveryMessageIsListedWithItsNumber) {
  const std::string text = document();
  for (const MessageType& type : kMessageTypes) {
    EXPECT_THAT(
        text, HasSubstr("| " + std::to_string(type.type) + " | " + std::string(type.name) + " |"));
  }
  EXPECT_THAT(text, HasSubstr("| 64 | CHUNK_REQUEST"));
  EXPECT_THAT(text, HasSubstr("| 65 | CHUNK_REPLY"));
}

TEST(ProtocolDocument, LimitsAreAsInTheCode) {
  const std::string text = document();
  EXPECT_EQ(kDefaultMaxMessageBytes, uint64_t{256} << 20);
  EXPECT_THAT(text, HasSubstr("256 MiB by default"));
  EXPECT_EQ(kMaxChunkBytes, uint64_t{16} << 20);
  EXPECT_THAT(text, HasSubstr("| chunk | 16 MiB |"));
  EXPECT_EQ(kMaxListItems, 1'048'576u);
  EXPECT_THAT(text, HasSubstr("| items of one list | 1,048,576 |"));
}

}  // namespace
}  // namespace warproll
