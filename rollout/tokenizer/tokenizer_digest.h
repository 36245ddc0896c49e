// The digest of a tokenizer: see Tokenizer::digest(). Internal to rollout/tokenizer. Thread: pure.
#pragma once

#include "protocol/records.h"
#include "rollout/tokenizer/tokenizer_json.h"

namespace warproll {

// XXH3-128 of, all integers u64 little-endian, all strings preceded by their length in bytes:
// "warproll tokenizer 1"; count, then (id, spelling) of the vocabulary by id; count, then
// (left, right, merged) ids of the merges by rank; count, then (id, content, special, normalized)
// of the added tokens by id; count, then the Split patterns in order; nfc; ignore_merges.
Digest tokenizer_digest(const TokenizerSpec& spec);

}  // namespace warproll
