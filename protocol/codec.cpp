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
  return encode_header(header, data.record, data.tensors);
}

Result<Bytes> encode_message(const Envelope& envelope, const Message& message) {
  if (const Data* data = std::get_if<Data>(&message)) {
    WARPROLL_TRY_ASSIGN(header, encode_data_header(envelope, *data));
    return join({header, data->record, data->tensors});
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
  return join_frame(header, body, {});
}

Result<std::pair<Envelope, Message>> decode_message(std::span<const std::byte> frame,
                                                    const CodecLimits& limits) {
  WARPROLL_TRY_ASSIGN(parts, split_frame(frame, limits.max_message_bytes));
  const FrameHeader& header = parts.header;
  const auto index = message_index(header.type);
  if (!index) {
    return invalid_argument("message type " + std::to_string(header.type) + " is unknown");
  }
  const auto copy_of = [](std::span<const std::byte> bytes) {
    return Bytes(bytes.begin(), bytes.end());
  };
  if (header.type == kDataType) {
    WARPROLL_TRY(check_flat("Data.record", parts.body));
    Data data{copy_of(parts.body), copy_of(parts.tensors), (header.flags & kFlagReplayed) != 0};
    return std::pair{header.envelope, Message(std::move(data))};
  }
  const std::string name(kMessageTypes[*index].name);
  if (header.flags != 0 || !parts.tensors.empty()) {
    return invalid_argument(name + " has flags " + std::to_string(header.flags) + " and " +
                            std::to_string(parts.tensors.size()) +
                            " bytes of tensors, wanted none");
  }
  auto message = decode_as(*index, parts.body);
  if (!message.ok()) return message.status().with_context(name);
  return std::pair{header.envelope, std::move(*message)};
}

}  // namespace warproll
