// Hugging Face tokenizer.json with byte-level BPE, as the Qwen models have it: text <-> token ids.
// What such a file can say beyond that (other models, normalizers, pre-tokenizers, decoders,
// post-processors that add tokens, lstrip/rstrip/single_word tokens) is refused by name at load,
// never approximated. Which characters are letters is as PCRE2 and ICU know them (Unicode 14 and 15
// in Debian 12): characters younger than that may be cut otherwise than in training.
//
// Thread: immutable after load; every method may run on many threads at once.
// Lifetime: share it as shared_ptr<const Tokenizer>; decoders and chat templates keep it alive.
// Errors: Status; messages name the file, the field, what it says and what was wanted.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/records.h"
#include "protocol/status.h"

namespace warproll {

struct TokenizerTables;

struct EncodeOptions {
  // false: text that spells a special token (<|im_end|>) is ordinary text. Added tokens that are not
  // special (<think>, <tool_call>) are found either way.
  bool match_special = true;
};

struct DecodeOptions {
  bool skip_special = false;  // special tokens decode to nothing
};

class Tokenizer {
 public:
  static Result<std::shared_ptr<const Tokenizer>> from_file(const std::string& path);
  // `name` stands for the file in messages.
  static Result<std::shared_ptr<const Tokenizer>> from_json(std::string_view text,
                                                            std::string_view name);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // kInvalidArgument: `text` is not UTF-8 (with the offset) or longer than 1 GiB.
  [[nodiscard]] Result<std::vector<int32_t>> encode(std::string_view text,
                                                    EncodeOptions options = {}) const;
  // Any ids are safe: those without a token decode to nothing, bytes that are not UTF-8 to U+FFFD
  // (one for each maximal ill-formed subpart). Equals Hugging Face's decode() without
  // clean_up_tokenization_spaces, but for added tokens with letters such as U+00E9, which there come
  // out as broken bytes and here as they are.
  [[nodiscard]] std::string decode(std::span<const int32_t> ids, DecodeOptions options = {}) const;

  // The bytes one id stands for: not always whole characters; empty for an id without a token.
  [[nodiscard]] std::string_view token_bytes(int32_t id) const;
  [[nodiscard]] bool is_special(int32_t id) const;
  // By the file's spelling: an added token's content ("<|im_end|>"), or a byte-level vocabulary
  // entry (U+0120 for a space).
  [[nodiscard]] std::optional<int32_t> id_of_token(std::string_view token) const;
  // Largest id + 1, added tokens included. A model's vocab_size may be larger (padding).
  [[nodiscard]] int32_t vocab_size() const;
  // XXH3-128 over what decides the ids: vocabulary, merges, added tokens, patterns, normalizer. The
  // same however the file is written (spelling of merges, order of keys, white space).
  [[nodiscard]] const Digest& digest() const;

 private:
  explicit Tokenizer(std::unique_ptr<const TokenizerTables> tables);
  std::unique_ptr<const TokenizerTables> tables_;
};

}  // namespace warproll
