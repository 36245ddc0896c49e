#include "protocol/frame.h"

#include <xxhash.h>

#include <bit>
#include <cstring>

namespace warproll {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire form is little-endian");
constexpr std::byte kMagic[4] = {std::byte{'W'}, std::byte{'R'}, std::byte{'P'}, std::byte{'L'}};

template <typename T>
void put(Bytes* bytes, size_t offset, const T& value) {
  std::memcpy(bytes->data() + offset, &value, sizeof(value));
}
template <typename T>
void get(std::span<const std::byte> bytes, size_t offset, T* value) {
  std::memcpy(value, bytes.data() + offset, sizeof(*value));
}

Status wrong(const char* what, uint64_t got, uint64_t wanted) {
  return invalid_argument(std::string(what) + " is " + std::to_string(got) + ", wanted " +
                          std::to_string(wanted));
}

}  // namespace

uint64_t checksum64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Bytes encode_header(FrameHeader header, std::span<const std::byte> body,
                    std::span<const std::byte> tensors) {
  header.body_bytes = body.size();
  header.tensors_bytes = tensors.size();
  header.body_checksum = checksum64(body);
  Bytes bytes(kFrameHeaderBytes);
  put(&bytes, 0, kMagic);
  put(&bytes, 4, kProtocolVersion);
  put(&bytes, 6, header.type);
  put(&bytes, 8, header.flags);
  put(&bytes, 16, header.envelope.producer_id);
  put(&bytes, 32, header.envelope.epoch);
  put(&bytes, 40, header.envelope.seq);
  put(&bytes, 48, header.body_bytes);
  put(&bytes, 56, header.tensors_bytes);
  put(&bytes, 64, header.body_checksum);
  put(&bytes, 72, checksum64(std::span(bytes).first(72)));
  return bytes;
}

Result<FrameHeader> decode_header(std::span<const std::byte> frame) {
  if (frame.size() < kFrameHeaderBytes) {
    return invalid_argument("message has " + std::to_string(frame.size()) +
                            " bytes, wanted a header of " + std::to_string(kFrameHeaderBytes));
  }
  const auto bytes = frame.first(kFrameHeaderBytes);
  if (std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return invalid_argument("frame header does not begin with 'WRPL'");
  }
  uint16_t version;
  get(bytes, 4, &version);
  // Before the checksum: another version may place it elsewhere.
  if (version != kProtocolVersion) return wrong("protocol version", version, kProtocolVersion);
  uint64_t checksum;
  get(bytes, 72, &checksum);
  if (checksum != checksum64(bytes.first(72))) {
    return data_loss("frame header checksum does not match");
  }
  FrameHeader header;
  uint32_t reserved;
  get(bytes, 6, &header.type);
  get(bytes, 8, &header.flags);
  get(bytes, 12, &reserved);
  get(bytes, 16, &header.envelope.producer_id);
  get(bytes, 32, &header.envelope.epoch);
  get(bytes, 40, &header.envelope.seq);
  get(bytes, 48, &header.body_bytes);
  get(bytes, 56, &header.tensors_bytes);
  get(bytes, 64, &header.body_checksum);
  if (reserved != 0) return wrong("reserved word of the frame header", reserved, 0);
  if ((header.flags & ~kFlagReplayed) != 0) {
    return invalid_argument("frame flags are " + std::to_string(header.flags) +
                            ", wanted 0 or 1 (replayed)");
  }
  return header;
}

Result<FrameParts> split_frame(std::span<const std::byte> frame, uint64_t max_message_bytes) {
  WARPROLL_TRY_ASSIGN(header, decode_header(frame));
  const auto rest = frame.subspan(kFrameHeaderBytes);
  if (header.body_bytes > rest.size() || header.tensors_bytes != rest.size() - header.body_bytes) {
    return invalid_argument("message has " + std::to_string(rest.size()) +
                            " bytes behind its header, wanted " +
                            std::to_string(header.body_bytes) + " of body and " +
                            std::to_string(header.tensors_bytes) + " of tensors");
  }
  if (frame.size() > max_message_bytes) {
    return invalid_argument("message has " + std::to_string(frame.size()) +
                            " bytes, wanted at most " + std::to_string(max_message_bytes));
  }
  const auto body = rest.first(header.body_bytes);
  if (checksum64(body) != header.body_checksum) {
    return data_loss("body checksum does not match (" + std::to_string(body.size()) + " bytes)");
  }
  return FrameParts{header, body, rest.subspan(body.size())};
}

Bytes join_frame(const FrameHeader& header, std::span<const std::byte> body,
                 std::span<const std::byte> tensors) {
  return join({encode_header(header, body, tensors), body, tensors});
}

Bytes join(std::initializer_list<std::span<const std::byte>> pieces) {
  size_t size = 0;
  for (const auto piece : pieces) size += piece.size();
  Bytes joined;
  joined.reserve(size);
  for (const auto piece : pieces) joined.insert(joined.end(), piece.begin(), piece.end());
  return joined;
}

}  // namespace warproll
