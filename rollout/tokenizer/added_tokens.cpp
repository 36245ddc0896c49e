#include "rollout/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

namespace warproll {

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) {
  for (AddedToken& token : tokens) {
    const auto first = static_cast<uint8_t>(token.content[0]);
    by_first_byte_[first].push_back(std::move(token));
  }
  for (auto& bucket : by_first_byte_) {
    std::sort(bucket.begin(), bucket.end(), [](const AddedToken& a, const AddedToken& b) {
      return a.content.size() > b.content.size();
    });
  }
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::find(std::string_view text, size_t from,
                                                                bool match_special) const {
  for (size_t at = from; at < text.size(); ++at) {
    for (const AddedToken& token : by_first_byte_[static_cast<uint8_t>(text[at])]) {
      if (token.special && !match_special) continue;
      if (text.compare(at, token.content.size(), token.content) != 0) continue;
      return Match{at, at + token.content.size(), token.id};
    }
  }
  return std::nullopt;
}

}  // namespace warproll
