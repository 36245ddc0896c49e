#include "rollout/tokenizer/tokenizer_tables.h"

#include <algorithm>
#include <utility>

#include "rollout/tokenizer/nfc.h"
#include "rollout/tokenizer/tokenizer_digest.h"

namespace warproll {

Result<std::unique_ptr<const TokenizerTables>> TokenizerTables::build(TokenizerSpec spec) {
  auto tables = std::make_unique<TokenizerTables>();
  tables->digest = tokenizer_digest(spec);
  tables->nfc = spec.nfc;
  tables->ignore_merges = spec.ignore_merges;
  for (const std::string& pattern : spec.splits) {
    WARPROLL_TRY_ASSIGN(split, SplitPattern::compile(pattern));
    tables->splits.push_back(std::move(split));
  }
  const int32_t last_id = std::max(spec.vocab.empty() ? -1 : spec.vocab.back().id,
                                   spec.added.empty() ? -1 : spec.added.back().id);
  tables->bytes.resize(static_cast<size_t>(last_id) + 1);
  tables->special.resize(tables->bytes.size());
  WARPROLL_TRY(tables->fill_vocab(spec.vocab));
  WARPROLL_TRY(tables->fill_added(std::move(spec.added)));
  tables->merges = BpeMerges(std::move(spec.merges));
  return std::unique_ptr<const TokenizerTables>(std::move(tables));
}

Status TokenizerTables::fill_vocab(const std::vector<VocabEntry>& vocab) {
  ids.reserve(vocab.size());
  for (const VocabEntry& entry : vocab) {
    ids.emplace(entry.spelling, entry.id);
    bytes[entry.id] = alphabet.bytes_of(entry.spelling);
  }
  // Hugging Face drops bytes that the vocabulary lacks without a word; text must not vanish.
  for (int byte = 0; byte < 256; ++byte) {
    const std::string& spelling = alphabet.character(static_cast<uint8_t>(byte));
    const auto found = ids.find(spelling);
    if (found == ids.end()) {
      return invalid_argument("model.vocab has no token for the byte " + std::to_string(byte) +
                              " (\"" + spelling + "\"), wanted all 256 bytes");
    }
    byte_ids[byte] = found->second;
  }
  return ok_status();
}

Status TokenizerTables::fill_added(std::vector<AddedToken> added) {
  std::vector<AddedToken> raw;
  std::vector<AddedToken> normalized;
  for (AddedToken& token : added) {
    ids.emplace(token.content, token.id);
    bytes[token.id] = token.content;
    special[token.id] = token.special;
    if (token.normalized && nfc) {
      WARPROLL_TRY_ASSIGN(content, to_nfc(token.content));
      token.content = std::move(content);
    }
    (token.normalized ? normalized : raw).push_back(std::move(token));
  }
  raw_tokens = AddedTokenMatcher(std::move(raw));
  normalized_tokens = AddedTokenMatcher(std::move(normalized));
  return ok_status();
}

}  // namespace warproll
