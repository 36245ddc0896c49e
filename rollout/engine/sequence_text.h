// SequenceText: the text of one sample as its tokens come, with its stop strings.
// Special tokens decode to nothing. Thread: the engine's only.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "rollout/tokenizer/incremental_decoder.h"
#include "rollout/tokenizer/stop_string_matcher.h"

namespace warproll {

class SequenceText {
 public:
  SequenceText(std::shared_ptr<const Tokenizer> tokenizer, StopStringMatcher matcher)
      : decoder_(std::move(tokenizer), {.skip_special = true}), matcher_(std::move(matcher)) {}

  // True: a stop string is complete with this token.
  bool feed(int32_t token_id) {
    text_ += matcher_.feed(decoder_.feed(token_id));
    return matcher_.stopped();
  }
  // The whole text, cut before the stop string. Call once, after the last token.
  std::string finish() {
    text_ += matcher_.feed(decoder_.flush());
    text_ += matcher_.flush();
    return std::move(text_);
  }

 private:
  IncrementalDecoder decoder_;
  StopStringMatcher matcher_;
  std::string text_;
};

}  // namespace warproll
