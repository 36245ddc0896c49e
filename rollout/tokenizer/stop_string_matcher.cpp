#include "rollout/tokenizer/stop_string_matcher.h"

#include <algorithm>
#include <utility>

#include "rollout/tokenizer/utf8_stream.h"

namespace warproll {

Result<StopStringMatcher> StopStringMatcher::create(const std::vector<std::string>& stop_strings) {
  auto patterns = std::make_shared<std::vector<Pattern>>();
  for (size_t index = 0; index < stop_strings.size(); ++index) {
    const std::string& text = stop_strings[index];
    if (text.empty() || find_invalid_utf8(text)) {
      return invalid_argument("stop string " + std::to_string(index) + " is " +
                              (text.empty() ? "empty" : "not UTF-8") +
                              ", wanted at least one character of UTF-8");
    }
    Pattern pattern{text, std::vector<size_t>(text.size() + 1, 0)};
    size_t border = 0;
    for (size_t i = 1; i < text.size(); ++i) {
      while (border > 0 && text[i] != text[border]) border = pattern.border[border];
      if (text[i] == text[border]) ++border;
      pattern.border[i + 1] = border;
    }
    patterns->push_back(std::move(pattern));
  }
  StopStringMatcher matcher;
  matcher.matched_bytes_.resize(patterns->size());
  matcher.patterns_ = std::move(patterns);
  return matcher;
}

std::string StopStringMatcher::feed(std::string_view text) {
  if (stopped()) return {};
  if (matched_bytes_.empty()) return std::string(text);
  size_t keep = held_.size();
  held_ += text;
  for (const char byte : text) {
    ++keep;
    if (!advance(byte)) continue;
    std::string before = held_.substr(0, keep - matched_->size());
    held_.clear();
    return before;
  }
  const size_t longest = *std::max_element(matched_bytes_.begin(), matched_bytes_.end());
  std::string certain = held_.substr(0, held_.size() - longest);
  held_.erase(0, certain.size());
  return certain;
}

bool StopStringMatcher::advance(char byte) {
  for (size_t i = 0; i < matched_bytes_.size(); ++i) {
    const Pattern& pattern = (*patterns_)[i];
    size_t& matched = matched_bytes_[i];
    while (matched > 0 && pattern.text[matched] != byte) matched = pattern.border[matched];
    if (pattern.text[matched] == byte) ++matched;
    if (matched < pattern.text.size()) continue;
    if (matched_ == nullptr || matched_->size() < matched) matched_ = &pattern.text;
  }
  return stopped();
}

std::string StopStringMatcher::flush() {
  std::fill(matched_bytes_.begin(), matched_bytes_.end(), 0);
  return std::exchange(held_, {});
}

}  // namespace warproll
