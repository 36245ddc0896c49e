// One call of Tokenizer::encode: added tokens, normalisation, splitting, merging.
// Internal to rollout/tokenizer. Thread: one call.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "protocol/status.h"
#include "rollout/tokenizer/bpe.h"
#include "rollout/tokenizer/tokenizer.h"
#include "rollout/tokenizer/tokenizer_tables.h"

namespace warproll {

class TextEncoder {
 public:
  TextEncoder(const TokenizerTables& tables, EncodeOptions options)
      : tables_(tables), options_(options) {}

  // `text` is well-formed UTF-8. Call once.
  Result<std::vector<int32_t>> encode(std::string_view text);

 private:
  Status encode_raw(std::string_view segment);
  Status encode_words(std::string_view normalized);
  void encode_word(std::string_view word);

  const TokenizerTables& tables_;
  const EncodeOptions options_;
  std::vector<int32_t> ids_;
  std::vector<std::string_view> words_;
  std::vector<std::string_view> parts_;
  std::vector<int32_t> symbols_;
  BpeScratch scratch_;
};

}  // namespace warproll
