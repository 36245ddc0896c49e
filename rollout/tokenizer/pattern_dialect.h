// Hugging Face runs the patterns of tokenizer.json with Oniguruma, this project with PCRE2. Where
// the two read the same text the same way, it is passed on; \s and \S are rewritten (PCRE2's
// includes U+180E, which is no white space since Unicode 6.3); everything that the two read
// differently is refused by name instead of tokenizing a few strings otherwise than in training.
// Thread: pure.
#pragma once

#include <string>
#include <string_view>

#include "protocol/status.h"

namespace warproll {

// The PCRE2 spelling (options UTF, UCP, newline LF) of an Oniguruma `pattern`.
// Accepted: literals, '.', '|', ( (?: (?i: (?= (?! (?<= (?<! (?> groups, flat classes, quantifiers
// * + ? {n} {n,} {n,m} with lazy ? and (but after braces) possessive +, \s \S \d \D \r \n \t \f,
// \xHH, \x{H...}, \p{..} and \P{..} of general categories, escaped punctuation.
Result<std::string> to_pcre2_pattern(std::string_view pattern);

}  // namespace warproll
