#include "protocol/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/protocol/random_records.h"

namespace warproll {
namespace {

using ::testing::HasSubstr;

Frames ack_frames() {
  Envelope envelope{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, 3, 0};
  return *encode_message(envelope, Ack{"L", 1, 2, 3, 4});
}

Frames data_frames() {
  testing::Random random(5);
  Trajectory trajectory = testing::random_trajectory(random);
  trajectory.routed_experts =
      testing::random_routes(random, static_cast<int32_t>(trajectory.token_ids.size()) - 1);
  Data data;
  EXPECT_TRUE(encode_trajectory(trajectory, &data.record, &data.tensors).ok());
  return *encode_message({trajectory.producer_id, 1, trajectory.seq}, data);
}

// Changes header bytes as a peer of another make would: with a header checksum that fits.
void patch_header(Frames* frames, size_t offset, std::vector<uint8_t> values) {
  Bytes& header = (*frames)[0];
  std::memcpy(header.data() + offset, values.data(), values.size());
  const uint64_t checksum = checksum64(std::span(header).first(72));
  std::memcpy(header.data() + 72, &checksum, sizeof(checksum));
}

std::string refusal(Frames frames, uint64_t max_message_bytes = kDefaultMaxMessageBytes) {
  return decode_message(std::move(frames), {max_message_bytes}).status().to_string();
}

TEST(Frame, HeaderBytesAreAsDocumented) {
  const Frames frames = ack_frames();
  ASSERT_EQ(frames[0].size(), 80u);
  const auto* bytes = reinterpret_cast<const uint8_t*>(frames[0].data());
  EXPECT_EQ(std::memcmp(bytes, "WRPL", 4), 0);
  EXPECT_EQ(bytes[4], 1);   // version
  EXPECT_EQ(bytes[6], 34);  // ACK
  EXPECT_EQ(bytes[8], 0);   // flags
  EXPECT_EQ(bytes[16], 1);  // producer_id
  EXPECT_EQ(bytes[31], 16);
  EXPECT_EQ(bytes[32], 3);  // epoch
  EXPECT_EQ(bytes[40], 0);  // seq
  EXPECT_EQ(bytes[48], frames[1].size());
  EXPECT_EQ(bytes[56], 0);  // no tensors
}

TEST(Frame, ChecksumsAreXxh3WithSeedZero) {
  // XXH3_64bits of nothing and of "a", from the reference implementation's published vectors.
  EXPECT_EQ(checksum64({}), 0x2D06800538D394C2u);
  const std::byte a{'a'};
  EXPECT_EQ(checksum64({&a, 1}), 0xE6C632B61E964E1Fu);
}

TEST(Frame, AWrongMagicIsNamed) {
  Frames frames = ack_frames();
  patch_header(&frames, 0, {'X'});
  EXPECT_THAT(refusal(frames), HasSubstr("does not begin with 'WRPL'"));
}

TEST(Frame, AnotherVersionIsNamedWithBothNumbers) {
  Frames frames = ack_frames();
  patch_header(&frames, 4, {2, 0});
  EXPECT_EQ(refusal(frames), "INVALID_ARGUMENT: protocol version is 2, wanted 1");
}

TEST(Frame, AnUnknownTypeIsNamed) {
  Frames frames = ack_frames();
  patch_header(&frames, 6, {99, 1});
  EXPECT_EQ(refusal(frames), "INVALID_ARGUMENT: message type 355 is unknown");
}

TEST(Frame, UnknownFlagsAndReservedBitsAreRefused) {
  Frames frames = ack_frames();
  patch_header(&frames, 8, {2});
  EXPECT_THAT(refusal(frames), HasSubstr("frame flags are 2, wanted 0 or 1"));
  frames = ack_frames();
  patch_header(&frames, 12, {1});
  EXPECT_THAT(refusal(frames), HasSubstr("reserved word of the frame header is 1, wanted 0"));
  frames = ack_frames();
  patch_header(&frames, 8, {1});
  EXPECT_THAT(refusal(frames), HasSubstr("ACK has flags 1"));
}

TEST(Frame, EveryFlippedBitOfTheHeaderIsNoticed) {
  const Frames frames = ack_frames();
  for (size_t bit = 0; bit < 8 * frames[0].size(); ++bit) {
    Frames mutant = frames;
    mutant[0][bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_NE(refusal(mutant), "OK") << "bit " << bit;
  }
}

TEST(Frame, EveryFlippedBitOfTheBodyIsNoticed) {
  const Frames frames = ack_frames();
  for (size_t bit = 0; bit < 8 * frames[1].size(); ++bit) {
    Frames mutant = frames;
    mutant[1][bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_EQ(decode_message(mutant, {}).status().code(), StatusCode::kDataLoss) << "bit " << bit;
  }
}

TEST(Frame, EveryTruncationOfEveryFrameIsRefused) {
  const Frames frames = data_frames();
  ASSERT_EQ(frames.size(), 3u);
  for (size_t frame = 0; frame < frames.size(); ++frame) {
    for (size_t size = 0; size < frames[frame].size(); ++size) {
      Frames cut = frames;
      cut[frame].resize(size);
      EXPECT_NE(refusal(cut), "OK") << "frame " << frame << " cut to " << size;
    }
  }
}

TEST(Frame, MissingAndExtraFramesAreCounted) {
  Frames frames = ack_frames();
  frames.push_back(Bytes(8));
  EXPECT_EQ(refusal(frames), "INVALID_ARGUMENT: number of frames is 3, wanted 2");
  frames = data_frames();
  frames.pop_back();
  EXPECT_EQ(refusal(frames), "INVALID_ARGUMENT: number of frames is 2, wanted 3");
  EXPECT_EQ(refusal({}), "INVALID_ARGUMENT: number of frames is 0, wanted 2");
}

TEST(Frame, OnlyDataMayCarryTensors) {
  const Frames frames = ack_frames();
  FrameHeader header = *decode_header(frames[0]);
  EXPECT_THAT(refusal(make_frames(header, frames[1], Bytes(8))),
              HasSubstr("ACK has flags 0 and 3 frames, wanted 0 and 2"));
}

TEST(Frame, AMessageOverTheLimitIsRefusedWithBothSizes) {
  const Frames frames = data_frames();
  const uint64_t size = frames[0].size() + frames[1].size() + frames[2].size();
  EXPECT_EQ(refusal(frames, size), "OK");
  EXPECT_EQ(refusal(frames, size - 1), "INVALID_ARGUMENT: message has " + std::to_string(size) +
                                           " bytes, wanted at most " + std::to_string(size - 1));
}

TEST(Frame, ADataRecordThatIsNoSingleSegmentIsRefusedOnBothSides) {
  Data data;
  data.record.resize(24);
  data.record[0] = std::byte{1};  // two segments
  EXPECT_THAT(encode_message({}, data).status().message(), HasSubstr("2 Cap'n Proto segments"));
  FrameHeader header;
  header.type = 32;
  EXPECT_THAT(refusal(make_frames(header, data.record, {})), HasSubstr("2 Cap'n Proto segments"));
}

TEST(Frame, ARecordTravelsByteForByte) {
  testing::Random random(9);
  Data data;
  ASSERT_TRUE(
      encode_trajectory(testing::random_trajectory(random), &data.record, &data.tensors).ok());
  const Frames frames = *encode_message({}, data);
  EXPECT_EQ(frames[1], data.record);
  const auto back = decode_message(frames, {});
  EXPECT_EQ(std::get<Data>(back->second).record, data.record);
}

}  // namespace
}  // namespace warproll
