// What a loaded tokenizer looks up, made from a TokenizerSpec. Internal to rollout/tokenizer.
// Thread: immutable after build().
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/records.h"
#include "protocol/status.h"
#include "rollout/tokenizer/added_tokens.h"
#include "rollout/tokenizer/bpe.h"
#include "rollout/tokenizer/byte_alphabet.h"
#include "rollout/tokenizer/split_pattern.h"
#include "rollout/tokenizer/tokenizer_json.h"

namespace warproll {

struct TokenizerTables {
  std::unordered_map<std::string, int32_t> ids;  // by the file's spelling
  std::vector<std::string> bytes;                // [vocab_size], empty where there is no token
  std::vector<bool> special;                     // [vocab_size]
  std::array<int32_t, 256> byte_ids{};
  BpeMerges merges;
  std::vector<SplitPattern> splits;     // applied in order
  AddedTokenMatcher raw_tokens;         // looked for before normalisation
  AddedTokenMatcher normalized_tokens;  // and after it
  ByteAlphabet alphabet;
  bool nfc = false;
  bool ignore_merges = false;
  Digest digest{};

  static Result<std::unique_ptr<const TokenizerTables>> build(TokenizerSpec spec);

 private:
  Status fill_vocab(const std::vector<VocabEntry>& vocab);
  Status fill_added(std::vector<AddedToken> added);
};

}  // namespace warproll
