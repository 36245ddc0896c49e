#include "protocol/chunks.h"

#include <capnp/message.h>

#include "protocol/messages.capnp.h"
// After Cap'n Proto and the generated headers:
#include "protocol/codec_fields.h"
#include "protocol/frame.h"
#include "protocol/message_types.h"

namespace warproll {
namespace {

constexpr uint64_t kMaxChunkMessageBytes = kMaxChunkBytes + (uint64_t{1} << 16);

struct ChunkReplyBody {  // what travels in the body
  ChunkReply reply;
  uint64_t checksum = 0;
};

void write(wire::ChunkRequest::Builder to, const ChunkRequest& from, FieldWriter&) {
  write_id(to.initId(), from.id);
  to.setBucketIndex(from.bucket_index);
  to.setOffsetBytes(from.offset_bytes);
  to.setLengthBytes(from.length_bytes);
}
void read(wire::ChunkRequest::Reader from, ChunkRequest* to, FieldReader&) {
  read_id(from.getId(), &to->id);
  to->bucket_index = from.getBucketIndex();
  to->offset_bytes = from.getOffsetBytes();
  to->length_bytes = from.getLengthBytes();
}

void read_reply(wire::ChunkReply::Reader from, ChunkReplyBody* to, FieldReader& r) {
  read_id(from.getId(), &to->reply.id);
  to->reply.bucket_index = from.getBucketIndex();
  to->reply.offset_bytes = from.getOffsetBytes();
  to->checksum = from.getXxh3();
  r.text("ChunkReply.error", from.getError(), &to->reply.error);
}

Status check_request(const ChunkRequest& request) {
  const uint64_t length = request.length_bytes;
  if (length >= 1 && length <= kMaxChunkBytes && request.offset_bytes <= UINT64_MAX - length) {
    return {};
  }
  return invalid_argument("ChunkRequest asks for " + std::to_string(length) + " bytes at " +
                          std::to_string(request.offset_bytes) + ", wanted 1.." +
                          std::to_string(kMaxChunkBytes) + " bytes within 2^64");
}

Result<FrameHeader> check_chunk_frames(const Frames& frames, uint16_t type, const char* name) {
  auto header = check_frames(frames, kMaxChunkMessageBytes);
  if (!header.ok()) return header.status().with_context(name);
  if (header->type == type && header->flags == 0) return header;
  return invalid_argument(std::string(name) + " has type " + std::to_string(header->type) +
                          " and flags " + std::to_string(header->flags) + ", wanted " +
                          std::to_string(type) + " and 0");
}

}  // namespace

WARPROLL_DEFINE_BODY(ChunkRequest)

Result<Frames> encode_chunk_request(const ChunkRequest& request) {
  WARPROLL_TRY(check_request(request));
  FrameHeader header;
  header.type = kChunkRequestType;
  WARPROLL_TRY_ASSIGN(body, encode_body(request));
  return make_frames(header, std::move(body), {});
}

Result<ChunkRequest> decode_chunk_request(const Frames& frames) {
  WARPROLL_TRY_ASSIGN(header, check_chunk_frames(frames, kChunkRequestType, "CHUNK_REQUEST"));
  if (header.tensors_bytes != 0) return invalid_argument("CHUNK_REQUEST has bytes, wanted none");
  ChunkRequest request;
  WARPROLL_TRY(decode_body(frames[1], &request));
  WARPROLL_TRY(check_request(request));
  return request;
}

Result<Frames> encode_chunk_reply_head(const ChunkReply& reply, std::span<const std::byte> bytes) {
  if (reply.error.empty() != !bytes.empty() || bytes.size() > kMaxChunkBytes) {
    return invalid_argument(
        "ChunkReply has " + std::to_string(bytes.size()) + " bytes and error '" + reply.error +
        "', wanted either an error or 1.." + std::to_string(kMaxChunkBytes) + " bytes");
  }
  FrameHeader header;
  header.type = kChunkReplyType;
  WARPROLL_TRY_ASSIGN(
      body, build_flat("ChunkReply", 0, [&](capnp::MessageBuilder& message, FieldWriter& w) {
        auto to = message.initRoot<wire::ChunkReply>();
        write_id(to.initId(), reply.id);
        to.setBucketIndex(reply.bucket_index);
        to.setOffsetBytes(reply.offset_bytes);
        to.setXxh3(bytes.empty() ? 0 : checksum64(bytes));
        to.setError(w.text("ChunkReply.error", reply.error));
      }));
  header.body_bytes = body.size();
  header.tensors_bytes = bytes.size();
  header.body_checksum = checksum64(body);
  return Frames{encode_header(header), std::move(body)};
}

Result<Frames> encode_chunk_reply(const ChunkReply& reply, std::span<const std::byte> bytes) {
  WARPROLL_TRY_ASSIGN(frames, encode_chunk_reply_head(reply, bytes));
  if (!bytes.empty()) frames.emplace_back(bytes.begin(), bytes.end());
  return frames;
}

Result<ChunkReply> decode_chunk_reply(Frames frames) {
  WARPROLL_TRY_ASSIGN(header, check_chunk_frames(frames, kChunkReplyType, "CHUNK_REPLY"));
  ChunkReplyBody body;
  WARPROLL_TRY(
      read_flat("ChunkReply", frames[1], [&](capnp::MessageReader& message, FieldReader& r) {
        read_reply(message.getRoot<wire::ChunkReply>(), &body, r);
      }));
  ChunkReply& reply = body.reply;
  if (reply.error.empty() != (header.tensors_bytes > 0)) {
    return invalid_argument("CHUNK_REPLY has " + std::to_string(header.tensors_bytes) +
                            " bytes and error '" + reply.error +
                            "', wanted either an error or bytes");
  }
  if (frames.size() == 3) reply.bytes = std::move(frames[2]);
  if (!reply.bytes.empty() && checksum64(reply.bytes) != body.checksum) {
    return data_loss("CHUNK_REPLY of bucket " + std::to_string(reply.bucket_index) + " at " +
                     std::to_string(reply.offset_bytes) + ": checksum of " +
                     std::to_string(reply.bytes.size()) + " bytes does not match");
  }
  return std::move(reply);
}

}  // namespace warproll
