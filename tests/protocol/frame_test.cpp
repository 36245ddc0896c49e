#include "protocol/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/protocol/random_records.h"

namespace warproll {
namespace {

using ::testing::HasSubstr;

Bytes ack_frame() {
  Envelope envelope{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, 3, 0};
  return *encode_message(envelope, Ack{"L", 1, 2, 3, 4});
}

Data data_with_tensors() {
  testing::Random random(5);
  Trajectory trajectory = testing::random_trajectory(random);
  trajectory.routed_experts =
      testing::random_routes(random, static_cast<int32_t>(trajectory.token_ids.size()) - 1);
  Data data;
  EXPECT_TRUE(encode_trajectory(trajectory, &data.record, &data.tensors).ok());
  return data;
}

Bytes data_frame() { return *encode_message({}, data_with_tensors()); }

// Changes header bytes as a peer of another make would: with a header checksum that fits.
void patch_header(Bytes* frame, size_t offset, std::vector<uint8_t> values) {
  std::memcpy(frame->data() + offset, values.data(), values.size());
  const uint64_t checksum = checksum64(std::span(*frame).first(72));
  std::memcpy(frame->data() + 72, &checksum, sizeof(checksum));
}

std::string refusal(const Bytes& frame, uint64_t max_message_bytes = kDefaultMaxMessageBytes) {
  return decode_message(frame, {max_message_bytes}).status().to_string();
}

TEST(Frame, HeaderBytesAreAsDocumented) {
  const Bytes frame = ack_frame();
  ASSERT_GE(frame.size(), 80u);
  const auto* bytes = reinterpret_cast<const uint8_t*>(frame.data());
  EXPECT_EQ(std::memcmp(bytes, "WRPL", 4), 0);
  EXPECT_EQ(bytes[4], 2);   // version
  EXPECT_EQ(bytes[6], 34);  // ACK
  EXPECT_EQ(bytes[8], 0);   // flags
  EXPECT_EQ(bytes[16], 1);  // producer_id
  EXPECT_EQ(bytes[31], 16);
  EXPECT_EQ(bytes[32], 3);  // epoch
  EXPECT_EQ(bytes[40], 0);  // seq
  EXPECT_EQ(bytes[48], frame.size() - 80);
  EXPECT_EQ(bytes[56], 0);  // no tensors
}

TEST(Frame, ChecksumsAreXxh3WithSeedZero) {
  // XXH3_64bits of nothing and of "a", from the reference implementation's published vectors.
  EXPECT_EQ(checksum64({}), 0x2D06800538D394C2u);
  const std::byte a{'a'};
  EXPECT_EQ(checksum64({&a, 1}), 0xE6C632B61E964E1Fu);
}

TEST(Frame, AWrongMagicIsNamed) {
  Bytes frame = ack_frame();
  patch_header(&frame, 0, {'X'});
  EXPECT_THAT(refusal(frame), HasSubstr("does not begin with 'WRPL'"));
}

TEST(Frame, AnotherVersionIsNamedWithBothNumbers) {
  Bytes frame = ack_frame();
  patch_header(&frame, 4, {1, 0});
  EXPECT_EQ(refusal(frame), "INVALID_ARGUMENT: protocol version is 1, wanted 2");
}

TEST(Frame, AnUnknownTypeIsNamed) {
  Bytes frame = ack_frame();
  patch_header(&frame, 6, {99, 1});
  EXPECT_EQ(refusal(frame), "INVALID_ARGUMENT: message type 355 is unknown");
}

TEST(Frame, UnknownFlagsAndReservedBitsAreRefused) {
  Bytes frame = ack_frame();
  patch_header(&frame, 8, {2});
  EXPECT_THAT(refusal(frame), HasSubstr("frame flags are 2, wanted 0 or 1"));
  frame = ack_frame();
  patch_header(&frame, 12, {1});
  EXPECT_THAT(refusal(frame), HasSubstr("reserved word of the frame header is 1, wanted 0"));
  frame = ack_frame();
  patch_header(&frame, 8, {1});
  EXPECT_THAT(refusal(frame), HasSubstr("ACK has flags 1"));
}

TEST(Frame, EveryFlippedBitIsNoticed) {
  const Bytes frame = ack_frame();
  for (size_t bit = 0; bit < 8 * frame.size(); ++bit) {
    Bytes mutant = frame;
    mutant[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    const Status status = decode_message(mutant, {}).status();
    EXPECT_FALSE(status.ok()) << "bit " << bit;
    if (bit >= 8 * kFrameHeaderBytes) {
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << "bit " << bit;
    }
  }
}

TEST(Frame, EveryTruncationIsRefused) {
  const Bytes frame = data_frame();
  for (size_t size = 0; size < frame.size(); ++size) {
    EXPECT_NE(refusal(Bytes(frame.begin(), frame.begin() + static_cast<int64_t>(size))), "OK")
        << "cut to " << size;
  }
  EXPECT_EQ(refusal({}), "INVALID_ARGUMENT: message has 0 bytes, wanted a header of 80");
}

TEST(Frame, LengthsThatDoNotAddUpAreNamed) {
  Bytes frame = ack_frame();
  const std::string body = std::to_string(frame.size() - kFrameHeaderBytes);
  frame.resize(frame.size() + 8);
  EXPECT_THAT(refusal(frame),
              HasSubstr("bytes behind its header, wanted " + body + " of body and 0 of tensors"));
  for (const size_t offset : {48, 56}) {  // the sum of the two lengths would wrap around
    frame = ack_frame();
    patch_header(&frame, offset, std::vector<uint8_t>(8, 0xFF));
    EXPECT_THAT(refusal(frame), HasSubstr("18446744073709551615"));
  }
}

TEST(Frame, OnlyDataMayCarryTensors) {
  const Bytes frame = ack_frame();
  const auto parts = split_frame(frame, kDefaultMaxMessageBytes);
  ASSERT_TRUE(parts.ok());
  EXPECT_THAT(refusal(join_frame(parts->header, parts->body, Bytes(8))),
              HasSubstr("ACK has flags 0 and 8 bytes of tensors, wanted none"));
}

TEST(Frame, AMessageOverTheLimitIsRefusedWithBothSizes) {
  const Bytes frame = data_frame();
  const uint64_t size = frame.size();
  EXPECT_EQ(refusal(frame, size), "OK");
  EXPECT_EQ(refusal(frame, size - 1), "INVALID_ARGUMENT: message has " + std::to_string(size) +
                                          " bytes, wanted at most " + std::to_string(size - 1));
}

TEST(Frame, ADataRecordThatIsNoSingleSegmentIsRefusedOnBothSides) {
  Data data;
  data.record.resize(24);
  data.record[0] = std::byte{1};  // two segments
  EXPECT_THAT(encode_message({}, data).status().message(), HasSubstr("2 Cap'n Proto segments"));
  FrameHeader header;
  header.type = 32;
  EXPECT_THAT(refusal(join_frame(header, data.record, {})), HasSubstr("2 Cap'n Proto segments"));
}

TEST(Frame, ARecordAndItsTensorsTravelByteForByte) {
  const Data data = data_with_tensors();
  ASSERT_FALSE(data.tensors.empty());
  const Bytes frame = *encode_message({}, data);
  const auto parts = split_frame(frame, kDefaultMaxMessageBytes);
  ASSERT_TRUE(parts.ok());
  EXPECT_TRUE(std::ranges::equal(parts->body, data.record));
  EXPECT_TRUE(std::ranges::equal(parts->tensors, data.tensors));
  const auto back = decode_message(frame, {});
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(std::get<Data>(back->second) == data);
}

}  // namespace
}  // namespace warproll
