#include "rollout/tokenizer/text_encoder.h"

#include <optional>
#include <string>
#include <utility>

#include "rollout/tokenizer/nfc.h"

namespace warproll {
namespace {

// Calls on_token(id) and on_text(view) for what `text` consists of, in order.
template <typename OnToken, typename OnText>
Status for_each_segment(std::string_view text, const AddedTokenMatcher& matcher, bool match_special,
                        OnToken on_token, OnText on_text) {
  size_t done = 0;
  while (done < text.size()) {
    const auto match = matcher.find(text, done, match_special);
    const size_t end = match ? match->begin : text.size();
    if (end > done) WARPROLL_TRY(on_text(text.substr(done, end - done)));
    if (!match) break;
    on_token(match->id);
    done = match->end;
  }
  return ok_status();
}

}  // namespace

Result<std::vector<int32_t>> TextEncoder::encode(std::string_view text) {
  WARPROLL_TRY(for_each_segment(
      text, tables_.raw_tokens, options_.match_special, [&](int32_t id) { ids_.push_back(id); },
      [&](std::string_view segment) { return encode_raw(segment); }));
  return std::move(ids_);
}

Status TextEncoder::encode_raw(std::string_view segment) {
  std::string normalized;
  if (tables_.nfc) {
    WARPROLL_TRY_ASSIGN(nfc, to_nfc(segment));
    normalized = std::move(nfc);
    segment = normalized;
  }
  return for_each_segment(
      segment, tables_.normalized_tokens, options_.match_special,
      [&](int32_t id) { ids_.push_back(id); },
      [&](std::string_view text) { return encode_words(text); });
}

Status TextEncoder::encode_words(std::string_view normalized) {
  words_.assign(1, normalized);
  for (const SplitPattern& pattern : tables_.splits) {
    parts_.clear();
    for (const std::string_view word : words_) WARPROLL_TRY(pattern.split(word, &parts_));
    words_.swap(parts_);
  }
  for (const std::string_view word : words_) encode_word(word);
  return ok_status();
}

void TextEncoder::encode_word(std::string_view word) {
  if (tables_.ignore_merges) {
    const auto whole = tables_.ids.find(tables_.alphabet.spell(word));
    if (whole != tables_.ids.end()) return ids_.push_back(whole->second);
  }
  symbols_.clear();
  for (const char byte : word) symbols_.push_back(tables_.byte_ids[static_cast<uint8_t>(byte)]);
  tables_.merges.apply(symbols_, &scratch_, &ids_);
}

}  // namespace warproll
