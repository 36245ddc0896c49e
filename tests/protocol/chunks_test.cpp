#include "protocol/chunks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/frame.h"
#include "protocol/message_types.h"
#include "tests/protocol/random_records.h"

namespace warproll {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
Clock::time_point soon() { return Clock::now() + std::chrono::seconds(20); }

TEST(Chunks, RequestsComeBackEqual) {
  testing::Random random(3);
  for (int i = 0; i < 100; ++i) {
    const ChunkRequest request{testing::random_id(random), static_cast<uint32_t>(random.bits()),
                               random.bits() / 2,
                               static_cast<uint64_t>(random.between(1, kMaxChunkBytes))};
    const auto frame = encode_chunk_request(request);
    ASSERT_TRUE(frame.ok());
    const auto back = decode_chunk_request(*frame);
    ASSERT_EQ(back.status().to_string(), "OK");
    EXPECT_EQ(*back, request);
  }
}

TEST(Chunks, RepliesWithBytesAndRepliesWithAnErrorComeBackEqual) {
  testing::Random random(4);
  for (int i = 0; i < 100; ++i) {
    ChunkReply reply{testing::random_id(random), 7, random.bits(), "", {}};
    if (random.flip()) {
      reply.error = random.name();
    } else {
      reply.bytes = random.bytes(static_cast<size_t>(random.between(1, 5000)));
    }
    const auto frame = encode_chunk_reply(reply, reply.bytes);
    ASSERT_TRUE(frame.ok());
    const auto back = decode_chunk_reply(*frame);
    ASSERT_EQ(back.status().to_string(), "OK");
    EXPECT_EQ(*back, reply);
  }
}

TEST(Chunks, LengthsOutOfBoundsAreRefused) {
  for (const uint64_t length : {uint64_t{0}, kMaxChunkBytes + 1, UINT64_MAX}) {
    EXPECT_THAT(encode_chunk_request({{}, 0, 0, length}).status().message(),
                HasSubstr("wanted 1..16777216"));
  }
  EXPECT_FALSE(encode_chunk_request({{}, 0, UINT64_MAX, 1}).ok());
}

TEST(Chunks, AReplyHasEitherBytesOrAnError) {
  EXPECT_FALSE(encode_chunk_reply({}, {}).ok());
  EXPECT_FALSE(encode_chunk_reply({{}, 0, 0, "error", {}}, Bytes(3)).ok());
}

TEST(Chunks, AFlippedBitOfTheBytesIsDataLoss) {
  testing::Random random(5);
  Bytes frame = *encode_chunk_reply({}, random.bytes(1000));
  frame[frame.size() - 500] ^= std::byte{4};
  const Status status = decode_chunk_reply(frame).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("checksum of 1000 bytes does not match"));
}

TEST(Chunks, MessagesOfTheSessionAreNoChunks) {
  const Bytes frame = *encode_message({}, Drain{});
  EXPECT_THAT(decode_chunk_request(frame).status().message(),
              HasSubstr("CHUNK_REQUEST has type 8 and flags 0, wanted 64 and 0"));
  EXPECT_THAT(decode_message(*encode_chunk_request({{}, 0, 0, 1}), {}).status().message(),
              HasSubstr("message type 64 is unknown"));
}

TEST(Chunks, AClientPullsABucketInPiecesWithSeveralRequestsOutstanding) {
  ZmqContext context;
  auto server = ChunkServerSocket::bind(context, "tcp://127.0.0.1:*", {});
  ASSERT_EQ(server.status().to_string(), "OK");
  auto client = ChunkClientSocket::connect(context, server->endpoint(), {});
  ASSERT_TRUE(client.ok());
  ASSERT_TRUE(client->wait_ready(soon()).ok());
  testing::Random random(6);
  const Bytes bucket = random.bytes(100'003);
  constexpr uint64_t kPiece = 4096;
  const UpdateId id{1, 2, 3};
  for (uint64_t offset = 0; offset < bucket.size(); offset += kPiece) {
    const uint64_t length = std::min<uint64_t>(kPiece, bucket.size() - offset);
    ASSERT_TRUE(client->send({id, 9, offset, length}).ok());
  }
  Bytes copy(bucket.size());
  for (uint64_t offset = 0; offset < bucket.size(); offset += kPiece) {
    auto received = server->receive(soon());
    ASSERT_TRUE(received.ok() && received->has_value() && (*received)->request.ok());
    const ChunkRequest request = *(*received)->request;
    ChunkReply head{request.id, request.bucket_index, request.offset_bytes, "", {}};
    ASSERT_TRUE(server
                    ->send((*received)->peer, head,
                           std::span(bucket).subspan(request.offset_bytes, request.length_bytes))
                    .ok());
    auto reply = client->receive(soon());
    ASSERT_TRUE(reply.ok() && reply->has_value());
    EXPECT_EQ((*reply)->id, id);
    EXPECT_EQ((*reply)->bucket_index, 9u);
    std::copy((*reply)->bytes.begin(), (*reply)->bytes.end(),
              copy.begin() + static_cast<int64_t>((*reply)->offset_bytes));
  }
  EXPECT_EQ(copy, bucket);
}

TEST(Chunks, TheLargestChunkPasses) {
  ZmqContext context;
  auto server = ChunkServerSocket::bind(context, "tcp://127.0.0.1:*", {});
  auto client = ChunkClientSocket::connect(context, server->endpoint(), {});
  ASSERT_TRUE(client->wait_ready(soon()).ok());
  ASSERT_TRUE(client->send({{}, 0, 0, kMaxChunkBytes}).ok());
  auto received = server->receive(soon());
  ASSERT_TRUE(received.ok() && received->has_value());
  const Bytes bytes(kMaxChunkBytes, std::byte{0x5A});
  ASSERT_TRUE(server->send((*received)->peer, {}, bytes).ok());
  auto reply = client->receive(soon());
  ASSERT_TRUE(reply.ok() && reply->has_value());
  EXPECT_EQ((*reply)->bytes, bytes);
}

TEST(Chunks, AMalformedRequestIsReportedAndTheServerGoesOn) {
  ZmqContext context;
  auto server = ChunkServerSocket::bind(context, "tcp://127.0.0.1:*", {});
  auto worker = WorkerSocket::connect(context, server->endpoint(), {});
  ASSERT_TRUE(worker->wait_ready(soon()).ok());
  ASSERT_TRUE(worker->send({}, Drain{}).ok());
  auto received = server->receive(soon());
  ASSERT_TRUE(received.ok() && received->has_value());
  EXPECT_FALSE((*received)->request.ok());
  EXPECT_EQ(server->send("gone", {{}, 0, 0, "no", {}}, {}).code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace warproll
