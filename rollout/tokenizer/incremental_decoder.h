// Decodes ids one by one into pieces of well-formed UTF-8: an incomplete character is held back
// until it is complete or cannot become complete. The pieces and flush(), joined, equal
// Tokenizer::decode of all the ids.
// Thread: one at a time. Lifetime: keeps the tokenizer alive. A copy is cheap (a pointer and at
// most 3 bytes) and goes its own way.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "rollout/tokenizer/tokenizer.h"
#include "rollout/tokenizer/utf8_stream.h"

namespace warproll {

class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(std::shared_ptr<const Tokenizer> tokenizer,
                              DecodeOptions options = {})
      : tokenizer_(std::move(tokenizer)), options_(options) {}

  // The text that became certain with `id`; often empty.
  [[nodiscard]] std::string feed(int32_t id);
  // No more ids come: a tail that is held back becomes U+FFFD. The decoder starts anew.
  [[nodiscard]] std::string flush();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  DecodeOptions options_;
  Utf8Stream stream_;
};

}  // namespace warproll
