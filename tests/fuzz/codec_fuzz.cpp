// Everything that decodes outside bytes in protocol/. The first byte chooses the parser. Whatever
// decodes must encode again, and decode to the same bytes.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>

#include "protocol/chunks.h"
#include "protocol/codec.h"
#include "protocol/frame.h"
#include "protocol/message_types.h"

namespace warproll {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void fuzz_record(std::span<const std::byte> bytes) {
  const auto summary = peek_trajectory(bytes);
  // The tensors a record asks for, when they are few.
  Bytes tensors;
  if (summary.ok() && summary->tensors_bytes < 4096) tensors.resize(summary->tensors_bytes);
  const auto trajectory = decode_trajectory(bytes, tensors);
  if (!trajectory.ok()) return;
  (void)validate(*trajectory, 1000).ok();
  Bytes first, second, routes;
  require(encode_trajectory(*trajectory, &first, &routes).ok());
  const auto again = decode_trajectory(first, routes);
  require(again.ok());
  require(encode_trajectory(*again, &second, &routes).ok());
  require(first == second);
}

void fuzz_task(std::span<const std::byte> bytes) {
  const auto task = decode_task(bytes);
  if (!task.ok()) return;
  (void)validate(*task).ok();
  const auto first = encode_task(*task);
  require(first.ok());
  require(*encode_task(*decode_task(*first)) == *first);
}

// A body of any kind behind a header that is right, so that the body's parser is reached.
void fuzz_body(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  FrameHeader header;
  header.type = kMessageTypes[static_cast<size_t>(bytes[0]) % kMessageTypes.size()].type;
  const auto body = bytes.subspan(1);
  const auto decoded = decode_message(join_frame(header, body, {}), CodecLimits{});
  if (!decoded.ok()) return;
  const auto frame = encode_message(decoded->first, decoded->second);
  require(frame.ok());
  const auto again = decode_message(*frame, CodecLimits{});
  require(again.ok());
  require(*encode_message(again->first, again->second) == *frame);
}

// A frame as it comes, and one whose header has the right checksum.
void fuzz_frame(std::span<const std::byte> bytes) {
  const auto decode = [](std::span<const std::byte> frame) {
    (void)decode_message(frame, CodecLimits{4096}).ok();
    (void)decode_chunk_request(frame).ok();
    (void)decode_chunk_reply(frame).ok();
  };
  decode(bytes);
  if (bytes.size() < kFrameHeaderBytes) return;
  Bytes frame(bytes.begin(), bytes.end());
  const uint64_t checksum = checksum64(bytes.first(kFrameHeaderBytes - sizeof(checksum)));
  std::memcpy(frame.data() + kFrameHeaderBytes - sizeof(checksum), &checksum, sizeof(checksum));
  decode(frame);
}

void fuzz_chunk_body(std::span<const std::byte> bytes) {
  FrameHeader header;
  header.type = kChunkRequestType;
  (void)decode_chunk_request(join_frame(header, bytes, {})).ok();
  header.type = kChunkReplyType;
  (void)decode_chunk_reply(join_frame(header, bytes, {})).ok();
}

}  // namespace
}  // namespace warproll

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 5) {
    case 0:
      warproll::fuzz_record(bytes);
      break;
    case 1:
      warproll::fuzz_task(bytes);
      break;
    case 2:
      warproll::fuzz_body(bytes);
      break;
    case 3:
      warproll::fuzz_frame(bytes);
      break;
    default:
      warproll::fuzz_chunk_body(bytes);
  }
  return 0;
}
