// The type number and name of every message, in the order of the Message variant.
// Numbers are for ever: a message that goes leaves its number unused. Thread: constants.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "protocol/messages.h"

namespace warproll {

struct MessageType {
  uint16_t type;
  std::string_view name;
};

inline constexpr std::array<MessageType, std::variant_size_v<Message>> kMessageTypes = {{
    {1, "HELLO"},
    {2, "WELCOME"},
    {3, "HEARTBEAT"},
    {4, "BYE"},
    {5, "NEED_HELLO"},
    {6, "FENCED"},
    {7, "PAUSE"},
    {8, "DRAIN"},
    {16, "TASK"},
    {17, "TASK_ACK"},
    {18, "CANCEL"},
    {32, "DATA"},
    {33, "GAP"},
    {34, "ACK"},
    {35, "NACK"},
    {48, "UPDATE_BEGIN"},
    {49, "UPDATE_ACCEPT"},
    {50, "UPDATE_REJECT"},
    {51, "UPDATE_DEFER"},
    {52, "UPDATE_START"},
    {53, "UPDATE_READY"},
    {54, "UPDATE_FAILED"},
    {55, "UPDATE_COMMIT"},
    {56, "UPDATE_ABORT"},
    {57, "UPDATE_COMMITTED"},
    {58, "ROLLBACK"},
    {59, "ROLLBACK_DONE"},
}};
inline constexpr uint16_t kDataType = 32;
inline constexpr uint16_t kChunkRequestType = 64;  // chunks.h: own sockets, no Message
inline constexpr uint16_t kChunkReplyType = 65;

// Index in the variant of a wire type; nullopt = unknown.
constexpr std::optional<size_t> message_index(uint16_t type) {
  for (size_t i = 0; i < kMessageTypes.size(); ++i) {
    if (kMessageTypes[i].type == type) return i;
  }
  return std::nullopt;
}

}  // namespace warproll
