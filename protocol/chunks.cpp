#include "protocol/chunks.h"

#include <capnp/message.h>

#include "protocol/messages.capnp.h"
// After Cap'n Proto and the generated headers:
#include "protocol/codec_fields.h"
#include "protocol/frame.h"
#include "protocol/message_types.h"

namespace warproll {
namespace {

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

Result<FrameParts> split_chunk_frame(std::span<const std::byte> frame, uint16_t type,
                                     const char* name) {
  auto parts = split_frame(frame, kMaxChunkMessageBytes);
  if (!parts.ok()) return parts.status().with_context(name);
  const FrameHeader& header = parts->header;
  if (header.type == type && header.flags == 0) return parts;
  return invalid_argument(std::string(name) + " has type " + std::to_string(header.type) +
                          " and flags " + std::to_string(header.flags) + ", wanted " +
                          std::to_string(type) + " and 0");
}

}  // namespace

WARPROLL_DEFINE_BODY(ChunkRequest)

Result<Bytes> encode_chunk_request(const ChunkRequest& request) {
  WARPROLL_TRY(check_request(request));
  FrameHeader header;
  header.type = kChunkRequestType;
  WARPROLL_TRY_ASSIGN(body, encode_body(request));
  return join_frame(header, body, {});
}

Result<ChunkRequest> decode_chunk_request(std::span<const std::byte> frame) {
  WARPROLL_TRY_ASSIGN(parts, split_chunk_frame(frame, kChunkRequestType, "CHUNK_REQUEST"));
  if (!parts.tensors.empty()) return invalid_argument("CHUNK_REQUEST has bytes, wanted none");
  ChunkRequest request;
  WARPROLL_TRY(decode_body(parts.body, &request));
  WARPROLL_TRY(check_request(request));
  return request;
}

Result<Bytes> encode_chunk_reply_head(const ChunkReply& reply, std::span<const std::byte> bytes) {
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
  return join({encode_header(header, body, bytes), body});
}

Result<Bytes> encode_chunk_reply(const ChunkReply& reply, std::span<const std::byte> bytes) {
  WARPROLL_TRY_ASSIGN(head, encode_chunk_reply_head(reply, bytes));
  return join({head, bytes});
}

Result<ChunkReply> decode_chunk_reply(std::span<const std::byte> frame) {
  WARPROLL_TRY_ASSIGN(parts, split_chunk_frame(frame, kChunkReplyType, "CHUNK_REPLY"));
  ChunkReplyBody body;
  WARPROLL_TRY(
      read_flat("ChunkReply", parts.body, [&](capnp::MessageReader& message, FieldReader& r) {
        read_reply(message.getRoot<wire::ChunkReply>(), &body, r);
      }));
  ChunkReply& reply = body.reply;
  if (reply.error.empty() == parts.tensors.empty()) {
    return invalid_argument("CHUNK_REPLY has " + std::to_string(parts.tensors.size()) +
                            " bytes and error '" + reply.error +
                            "', wanted either an error or bytes");
  }
  reply.bytes.assign(parts.tensors.begin(), parts.tensors.end());
  if (!reply.bytes.empty() && checksum64(reply.bytes) != body.checksum) {
    return data_loss("CHUNK_REPLY of bucket " + std::to_string(reply.bucket_index) + " at " +
                     std::to_string(reply.offset_bytes) + ": checksum of " +
                     std::to_string(reply.bytes.size()) + " bytes does not match");
  }
  return std::move(reply);
}

}  // namespace warproll
