// Tokenizers for the tests: the golden ones, and small ones made up as JSON.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rollout/tokenizer/tokenizer.h"

namespace warproll::testing {

std::string golden_path(const std::string& relative);
nlohmann::json golden_json(const std::string& relative);
// golden_path(directory)/tokenizer.json; throws what the Status says.
std::shared_ptr<const Tokenizer> golden_tokenizer(const std::string& directory);

// The 256 bytes as ids 0..255 in byte order, no merges, <|im_start|> 256, <|im_end|> 257 (both
// special) and <think> 258, GPT-2's pattern, no normalizer. Tests edit it before they load it.
nlohmann::json byte_tokenizer_json();
std::string byte_spelling(unsigned char byte);

std::shared_ptr<const Tokenizer> load(const nlohmann::json& tokenizer);
// The refusal's text; empty when the file is accepted.
std::string refusal_of_text(const std::string& text);
inline std::string refusal(const nlohmann::json& tokenizer) {
  return refusal_of_text(tokenizer.dump());
}

}  // namespace warproll::testing
