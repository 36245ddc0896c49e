// Finds stop strings in text that comes in pieces, across their borders. The stop is the first
// place where any stop string is complete; of those complete there, the longest counts. So the
// result does not depend on where the text was cut. Text that may still become part of a stop
// string is held back; text before the stop is never lost.
// Thread: one at a time. A copy is cheap (the compiled strings are shared) and goes its own way.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/status.h"

namespace warproll {

class StopStringMatcher {
 public:
  StopStringMatcher() = default;  // no stop strings: passes everything on
  // kInvalidArgument: an empty string or one that is not UTF-8, by its index.
  static Result<StopStringMatcher> create(const std::vector<std::string>& stop_strings);

  // The text that is now certain to lie before any stop string. Once stopped(), always empty.
  [[nodiscard]] std::string feed(std::string_view text);
  // No more text comes: what was held back. Empty after a stop.
  [[nodiscard]] std::string flush();

  [[nodiscard]] bool stopped() const { return matched_ != nullptr; }
  // The stop string that was found, when stopped().
  [[nodiscard]] const std::string& matched() const { return *matched_; }

 private:
  // Knuth, Morris, Pratt 1977: border[i] is the length of the longest proper prefix of the string
  // that is a suffix of its first i bytes.
  struct Pattern {
    std::string text;
    std::vector<size_t> border;
  };
  bool advance(char byte);

  std::shared_ptr<const std::vector<Pattern>> patterns_;
  std::vector<size_t> matched_bytes_;  // by pattern: the longest prefix that ends the text so far
  std::string held_;                   // the longest of them
  const std::string* matched_ = nullptr;  // into *patterns_
};

}  // namespace warproll
