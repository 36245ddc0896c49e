// The pre-tokenizer "Split" with behavior "Isolated": every match of a regular expression is a
// piece of its own, and so is the text between two matches. PCRE2 in UTF mode with JIT.
// Thread: immutable after compile(); split() may run on many threads at once.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/status.h"

namespace warproll {

class SplitPattern {
 public:
  // Errors: what pattern_dialect.h refuses, what PCRE2 cannot compile, what can match nothing.
  static Result<SplitPattern> compile(const std::string& pattern);

  // Appends views into `text` (well-formed UTF-8), none of them empty, that tile it.
  // kResourceExhausted when matching backtracks without end.
  Status split(std::string_view text, std::vector<std::string_view>* pieces) const;

 private:
  struct Code;
  explicit SplitPattern(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
};

}  // namespace warproll
