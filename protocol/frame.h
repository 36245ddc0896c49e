// The fixed header in front of every message, and the checks of a message's frames.
// Layout, little-endian (docs/protocol.md draws it):
//   0 magic "WRPL" | 4 version u16 | 6 type u16 | 8 flags u32 | 12 zero u32 | 16 producer_id 16 B |
//   32 epoch u64 | 40 seq u64 | 48 body bytes u64 | 56 tensors bytes u64 |
//   64 XXH3-64 of the body | 72 XXH3-64 of bytes 0..71
// Internal to protocol/. Thread: any (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/codec.h"

namespace warproll {

inline constexpr size_t kFrameHeaderBytes = 80;
inline constexpr uint16_t kProtocolVersion = 1;
inline constexpr uint32_t kFlagReplayed = 1;  // Data sent again on purpose

struct FrameHeader {
  uint16_t type = 0;
  uint32_t flags = 0;
  Envelope envelope;
  uint64_t body_bytes = 0;
  uint64_t tensors_bytes = 0;  // 0 = no third frame
  uint64_t body_checksum = 0;
  bool operator==(const FrameHeader&) const = default;
};

Bytes encode_header(const FrameHeader& header);
// kInvalidArgument: not a header, another version, unknown flags. kDataLoss: its checksum.
Result<FrameHeader> decode_header(std::span<const std::byte> bytes);
// The header, after the number, lengths, sum and body checksum of the frames were checked.
Result<FrameHeader> check_frames(const Frames& frames, uint64_t max_message_bytes);
// The header of a Data message, so that its record and tensors can be sent from where they are.
Result<Bytes> encode_data_header(const Envelope& envelope, const Data& data);
// The first two frames of a chunk reply (chunks.h), so that its bytes can be sent from where they
// are.
struct ChunkReply;
Result<Frames> encode_chunk_reply_head(const ChunkReply& reply, std::span<const std::byte> bytes);
// Header + body (+ tensors when not empty) as frames.
Frames make_frames(FrameHeader header, Bytes body, Bytes tensors);

}  // namespace warproll
