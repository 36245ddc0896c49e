// Tokens that are found in the text before it is split and merged (<|im_start|>, <think>).
// Thread: immutable.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace warproll {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;  // a control token: skipped by decode on request, never from chat content
  bool normalized = false;  // looked for in the normalised text instead of the raw one
};

// Leftmost, then longest match, as Hugging Face's.
class AddedTokenMatcher {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;  // exclusive
    int32_t id = 0;
  };

  AddedTokenMatcher() = default;  // finds nothing
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);
  // The first match at or after `from`; special tokens count only with `match_special`.
  [[nodiscard]] std::optional<Match> find(std::string_view text, size_t from,
                                          bool match_special) const;

 private:
  std::array<std::vector<AddedToken>, 256> by_first_byte_;  // longest first
};

}  // namespace warproll
