// The byte-level alphabet of GPT-2: each of the 256 bytes is written as one printable character in
// tokenizer.json (space is U+0120, newline U+010A, printable Latin-1 is itself).
// Source: Radford et al. 2019, byte-level BPE; the table in Hugging Face's ByteLevel.
// Thread: immutable after construction.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

namespace warproll {

class ByteAlphabet {
 public:
  ByteAlphabet();
  ByteAlphabet(const ByteAlphabet&) = delete;  // bytes_ views characters_
  ByteAlphabet& operator=(const ByteAlphabet&) = delete;

  // The character that stands for `byte`, as UTF-8.
  [[nodiscard]] const std::string& character(uint8_t byte) const { return characters_[byte]; }
  // The byte-level spelling of `bytes`.
  [[nodiscard]] std::string spell(std::string_view bytes) const;
  // The bytes that `token` (well-formed UTF-8) spells; where a character of it stands for no byte,
  // the token's own UTF-8 bytes, as Hugging Face's decoder has it.
  [[nodiscard]] std::string bytes_of(std::string_view token) const;

 private:
  std::array<std::string, 256> characters_;
  std::unordered_map<std::string_view, uint8_t> bytes_;  // views into characters_
};

}  // namespace warproll
