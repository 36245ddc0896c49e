#include "rollout/tokenizer/incremental_decoder.h"

namespace warproll {

std::string IncrementalDecoder::feed(int32_t id) {
  std::string text;
  if (!options_.skip_special || !tokenizer_->is_special(id)) {
    stream_.feed(tokenizer_->token_bytes(id), &text);
  }
  return text;
}

std::string IncrementalDecoder::flush() {
  std::string text;
  stream_.flush(&text);
  return text;
}

}  // namespace warproll
