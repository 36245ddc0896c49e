#include "protocol/codec.h"

#include "protocol/codec_fields.h"
#include "protocol/frame.h"
#include "protocol/message_types.h"

namespace warproll {
namespace {

template <size_t I = 0>
Result<Message> decode_as(size_t index, std::span<const std::byte> body) {
  if constexpr (I == std::variant_size_v<Message>) {
    return internal_error("message index " + std::to_string(index) + " is out of range");
  } else {
    using M = std::variant_alternative_t<I, Message>;
    if constexpr (!std::is_same_v<M, Data>) {
      if (index == I) {
        M message;
        WARPROLL_TRY(decode_body(body, &message));
        return Message(std::move(message));
      }
    }
    return decode_as<I + 1>(index, body);
  }
}

}  // namespace

Result<Bytes> encode_data_header(const Envelope& envelope, const Data& data) {
  WARPROLL_TRY(check_flat("Data.record", data.record));
  FrameHeader header;
  header.type = kDataType;
  header.flags = data.replayed ? kFlagReplayed : 0;
  header.envelope = envelope;
  header.body_bytes = data.record.size();
  header.tensors_bytes = data.tensors.size();
  header.body_checksum = checksum64(data.record);
  return encode_header(header);
}

Result<Frames> encode_message(const Envelope& envelope, const Message& message) {
  if (const Data* data = std::get_if<Data>(&message)) {
    WARPROLL_TRY_ASSIGN(header, encode_data_header(envelope, *data));
    Frames frames = {std::move(header), data->record};
    if (!data->tensors.empty()) frames.push_back(data->tensors);
    return frames;
  }
  FrameHeader header;
  header.type = kMessageTypes[message.index()].type;
  header.envelope = envelope;
  const auto encode = [](const auto& m) -> Result<Bytes> {
    if constexpr (std::is_same_v<std::decay_t<decltype(m)>, Data>) {
      return internal_error("DATA carries its record as it is");
    } else {
      return encode_body(m);
    }
  };
  WARPROLL_TRY_ASSIGN(body, std::visit(encode, message));
  return make_frames(header, std::move(body), {});
}

Result<std::pair<Envelope, Message>> decode_message(Frames frames, const CodecLimits& limits) {
  WARPROLL_TRY_ASSIGN(header, check_frames(frames, limits.max_message_bytes));
  const auto index = message_index(header.type);
  if (!index) {
    return invalid_argument("message type " + std::to_string(header.type) + " is unknown");
  }
  if (header.type == kDataType) {
    WARPROLL_TRY(check_flat("Data.record", frames[1]));
    Data data{std::move(frames[1]), {}, (header.flags & kFlagReplayed) != 0};
    if (frames.size() == 3) data.tensors = std::move(frames[2]);
    return std::pair{header.envelope, Message(std::move(data))};
  }
  const std::string name(kMessageTypes[*index].name);
  if (header.flags != 0 || frames.size() != 2) {
    return invalid_argument(name + " has flags " + std::to_string(header.flags) + " and " +
                            std::to_string(frames.size()) + " frames, wanted 0 and 2");
  }
  auto message = decode_as(*index, frames[1]);
  if (!message.ok()) return message.status().with_context(name);
  return std::pair{header.envelope, std::move(*message)};
}

}  // namespace warproll
