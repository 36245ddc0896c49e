// The "model" of tokenizer.json: vocabulary and merges of a byte-level BPE.
// Internal to rollout/tokenizer. Thread: pure.
#pragma once

#include <string>

#include "rollout/tokenizer/json_fields.h"
#include "rollout/tokenizer/tokenizer_json.h"

namespace warproll {

// An integer 0..kMaxTokenId.
Result<int32_t> parse_token_id(const nlohmann::json& value, const std::string& path);

// Fills vocab, merges and ignore_merges.
Status parse_bpe_model(const JsonFields& root, TokenizerSpec* spec);

}  // namespace warproll
