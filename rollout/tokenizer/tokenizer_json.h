// Reads Hugging Face's tokenizer.json into a TokenizerSpec, or says which part is not supported:
// byte-level BPE; normalizer NFC or none; pre-tokenizer Split, ByteLevel or a Sequence of Splits
// and a ByteLevel; decoder ByteLevel. Internal to rollout/tokenizer. Thread: pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/status.h"
#include "rollout/tokenizer/added_tokens.h"
#include "rollout/tokenizer/bpe.h"

namespace warproll {

// The largest vocabularies have about 2^20 ids; tables indexed by id stay small for any file.
inline constexpr int32_t kMaxTokenId = (1 << 22) - 1;

struct VocabEntry {
  int32_t id = 0;
  std::string spelling;  // in the byte-level alphabet
};

struct TokenizerSpec {
  std::vector<VocabEntry> vocab;    // by id, ascending, distinct
  std::vector<BpeMerge> merges;     // by rank, pairs distinct, ids of vocab
  std::vector<AddedToken> added;    // by id, ascending, distinct
  std::vector<std::string> splits;  // Oniguruma patterns, applied in order
  bool nfc = false;
  bool ignore_merges = false;  // a whole word that is in the vocabulary is not merged
};

Result<TokenizerSpec> parse_tokenizer_json(std::string_view text);

}  // namespace warproll
