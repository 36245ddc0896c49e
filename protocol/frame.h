// A message on the wire: one ZeroMQ frame with a fixed header, a body, and (DATA, CHUNK_REPLY)
// tensors. Never more frames: libzmq may abort when a connection ends between two (decisions.md 9).
// Layout, little-endian (docs/protocol.md draws it):
//   0 magic "WRPL" | 4 version u16 | 6 type u16 | 8 flags u32 | 12 zero u32 | 16 producer_id 16 B |
//   32 epoch u64 | 40 seq u64 | 48 body bytes u64 | 56 tensors bytes u64 |
//   64 XXH3-64 of the body | 72 XXH3-64 of bytes 0..71
// Internal to protocol/. Thread: any (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "protocol/codec.h"

namespace warproll {

inline constexpr size_t kFrameHeaderBytes = 80;
inline constexpr uint16_t kProtocolVersion = 2;
inline constexpr uint32_t kFlagReplayed = 1;  // Data sent again on purpose

struct FrameHeader {
  uint16_t type = 0;
  uint32_t flags = 0;
  Envelope envelope;
  uint64_t body_bytes = 0;
  uint64_t tensors_bytes = 0;
  uint64_t body_checksum = 0;
  bool operator==(const FrameHeader&) const = default;
};

// The parts of a frame, where they lie in it.
struct FrameParts {
  FrameHeader header;
  std::span<const std::byte> body;
  std::span<const std::byte> tensors;
};

// Both set the header's lengths and checksum.
Bytes encode_header(FrameHeader header, std::span<const std::byte> body,
                    std::span<const std::byte> tensors);
Bytes join_frame(const FrameHeader& header, std::span<const std::byte> body,
                 std::span<const std::byte> tensors);
// One behind the other.
Bytes join(std::initializer_list<std::span<const std::byte>> pieces);
// Of the first bytes of a frame. kInvalidArgument: no header, another version, unknown flags.
// kDataLoss: its checksum.
Result<FrameHeader> decode_header(std::span<const std::byte> frame);
// After the lengths, their sum and the body's checksum were checked; errors as decode_header.
Result<FrameParts> split_frame(std::span<const std::byte> frame, uint64_t max_message_bytes);
// The header of a Data message, so that its record and tensors can be sent from where they are.
Result<Bytes> encode_data_header(const Envelope& envelope, const Data& data);
// Header and body of a chunk reply (chunks.h), so that its bytes can be sent from where they are.
struct ChunkReply;
Result<Bytes> encode_chunk_reply_head(const ChunkReply& reply, std::span<const std::byte> bytes);

}  // namespace warproll
