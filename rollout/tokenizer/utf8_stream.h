// UTF-8 by the letter of Unicode 15, Table 3-7: no overlong forms, no surrogates, at most U+10FFFF.
// Ill-formed bytes become one U+FFFD for each maximal subpart (Unicode 3.9, "best practice"), which
// is also what Rust's from_utf8_lossy, and so Hugging Face's decode, does.
// Thread: free functions are pure; a Utf8Stream belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace warproll {

enum class Utf8Kind : uint8_t {
  kValid,       // one character of `length` bytes
  kInvalid,     // a maximal ill-formed subpart of `length` bytes
  kIncomplete,  // all the bytes are the beginning of a character
};
struct Utf8Step {
  Utf8Kind kind;
  size_t length;
};
// Classifies what `bytes` (not empty) begin with.
Utf8Step utf8_step(std::string_view bytes);

// Offset of the first byte that is not part of a well-formed character.
std::optional<size_t> find_invalid_utf8(std::string_view bytes);

// Bytes in, well-formed text out. The concatenation of the pieces does not depend on where the
// bytes were cut.
class Utf8Stream {
 public:
  // Appends to *text; an incomplete tail is held back (3 bytes at most).
  void feed(std::string_view bytes, std::string* text);
  // The end of the bytes: a tail that was held back becomes U+FFFD. The stream starts anew.
  void flush(std::string* text);

 private:
  std::string pending_;  // 0..3 bytes: never allocates
};

}  // namespace warproll
