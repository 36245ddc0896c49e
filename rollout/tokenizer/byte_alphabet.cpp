#include "rollout/tokenizer/byte_alphabet.h"

#include "rollout/tokenizer/utf8_stream.h"

namespace warproll {
namespace {

bool is_printable_latin1(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// code_point < U+0800
std::string short_utf8(int code_point) {
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xC0 | (code_point >> 6)),
          static_cast<char>(0x80 | (code_point & 0x3F))};
}

}  // namespace

ByteAlphabet::ByteAlphabet() {
  int next_substitute = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    characters_[byte] = short_utf8(is_printable_latin1(byte) ? byte : next_substitute++);
    bytes_[characters_[byte]] = static_cast<uint8_t>(byte);
  }
}

std::string ByteAlphabet::spell(std::string_view bytes) const {
  std::string spelling;
  spelling.reserve(bytes.size() * 2);
  for (const char byte : bytes) spelling += characters_[static_cast<uint8_t>(byte)];
  return spelling;
}

std::string ByteAlphabet::bytes_of(std::string_view token) const {
  std::string bytes;
  bytes.reserve(token.size());
  for (std::string_view rest = token; !rest.empty();) {
    const size_t length = utf8_step(rest).length;
    const auto found = bytes_.find(rest.substr(0, length));
    if (found == bytes_.end()) return std::string(token);
    bytes.push_back(static_cast<char>(found->second));
    rest.remove_prefix(length);
  }
  return bytes;
}

}  // namespace warproll
