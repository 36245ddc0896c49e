#include "rollout/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "protocol/strict_json.h"
#include "rollout/tokenizer/json_fields.h"
#include "rollout/tokenizer/model_json.h"

namespace warproll {
namespace {

using nlohmann::json;

// GPT-2's pattern, which ByteLevel applies itself with use_regex.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr size_t kMaxSplits = 16;

Status require_null(const JsonFields& root, const char* key) {
  const json& value = root.field(key);
  if (value.is_null()) return ok_status();
  return json_mismatch(root.path_of(key), value, "null (not supported)");
}

Result<bool> parse_normalizer(const JsonFields& root) {
  if (root.field("normalizer").is_null()) return false;
  WARPROLL_TRY_ASSIGN(normalizer, root.object("normalizer"));
  WARPROLL_TRY_ASSIGN(type, normalizer.string("type"));
  if (type == "NFC") return true;
  return json_mismatch(normalizer.path_of("type"), type, "\"NFC\", or no normalizer");
}

Status parse_split(const JsonFields& split, TokenizerSpec* spec) {
  WARPROLL_TRY_ASSIGN(behavior, split.string("behavior"));
  if (behavior != "Isolated") {
    return json_mismatch(split.path_of("behavior"), behavior, "\"Isolated\"");
  }
  WARPROLL_TRY(split.require_false("invert"));
  WARPROLL_TRY_ASSIGN(pattern, split.object("pattern"));
  WARPROLL_TRY_ASSIGN(regex, pattern.string("Regex"));
  spec->splits.push_back(std::move(regex));
  return ok_status();
}

Status parse_byte_level_splitter(const JsonFields& byte_level, TokenizerSpec* spec) {
  WARPROLL_TRY(byte_level.require_false("add_prefix_space"));
  WARPROLL_TRY_ASSIGN(use_regex, byte_level.boolean_or("use_regex", true));
  if (use_regex) spec->splits.emplace_back(kGpt2Pattern);
  return ok_status();
}

Status parse_sequence(const JsonFields& sequence, TokenizerSpec* spec) {
  WARPROLL_TRY(sequence.require_array("pretokenizers"));
  const json& steps = sequence.field("pretokenizers");
  if (steps.empty() || steps.size() > kMaxSplits) {
    return json_mismatch(sequence.path_of("pretokenizers"), steps,
                         "1.." + std::to_string(kMaxSplits) + " of them, the last one ByteLevel");
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string path = sequence.path_of("pretokenizers[" + std::to_string(i) + "]");
    WARPROLL_TRY_ASSIGN(step, JsonFields::of(steps[i], path));
    WARPROLL_TRY_ASSIGN(type, step.string("type"));
    const bool is_last = i + 1 == steps.size();
    if (type != (is_last ? "ByteLevel" : "Split")) {
      return json_mismatch(step.path_of("type"), type,
                           is_last ? "\"ByteLevel\" as the last of a Sequence"
                                   : "\"Split\" before the last of a Sequence");
    }
    WARPROLL_TRY(is_last ? parse_byte_level_splitter(step, spec) : parse_split(step, spec));
  }
  return ok_status();
}

Status parse_pre_tokenizer(const JsonFields& root, TokenizerSpec* spec) {
  WARPROLL_TRY_ASSIGN(pre_tokenizer, root.object("pre_tokenizer"));
  WARPROLL_TRY_ASSIGN(type, pre_tokenizer.string("type"));
  if (type == "ByteLevel") return parse_byte_level_splitter(pre_tokenizer, spec);
  if (type == "Sequence") return parse_sequence(pre_tokenizer, spec);
  return json_mismatch(pre_tokenizer.path_of("type"), type,
                       "\"ByteLevel\", or \"Sequence\" of Split and ByteLevel");
}

// A ByteLevel post-processor moves offsets only; all others add tokens.
Status check_post_processor(const JsonFields& root) {
  if (root.field("post_processor").is_null()) return ok_status();
  WARPROLL_TRY_ASSIGN(post_processor, root.object("post_processor"));
  WARPROLL_TRY_ASSIGN(type, post_processor.string("type"));
  if (type == "ByteLevel") return ok_status();
  return json_mismatch(
      post_processor.path_of("type"), type,
      "\"ByteLevel\", or no post_processor (one that adds tokens is not supported)");
}

Status check_decoder(const JsonFields& root) {
  WARPROLL_TRY_ASSIGN(decoder, root.object("decoder"));
  WARPROLL_TRY_ASSIGN(type, decoder.string("type"));
  if (type == "ByteLevel") return ok_status();
  return json_mismatch(decoder.path_of("type"), type, "\"ByteLevel\"");
}

Result<AddedToken> parse_added_token(const json& value, const std::string& path) {
  WARPROLL_TRY_ASSIGN(fields, JsonFields::of(value, path));
  AddedToken token;
  WARPROLL_TRY_ASSIGN(id, parse_token_id(fields.field("id"), fields.path_of("id")));
  WARPROLL_TRY_ASSIGN(content, fields.string("content"));
  if (content.empty()) return invalid_argument(fields.path_of("content") + " is empty");
  WARPROLL_TRY_ASSIGN(special, fields.boolean("special"));
  WARPROLL_TRY_ASSIGN(normalized, fields.boolean("normalized"));
  WARPROLL_TRY(fields.require_false("single_word"));
  WARPROLL_TRY(fields.require_false("lstrip"));
  WARPROLL_TRY(fields.require_false("rstrip"));
  return AddedToken{id, std::move(content), special, normalized};
}

// An added token may also be an entry of the vocabulary: then with the same id in both.
Status check_against_vocab(const AddedToken& token, const TokenizerSpec& spec,
                           const std::unordered_map<std::string_view, int32_t>& vocab_ids) {
  const std::string name =
      "the added token " + describe_json(token.content) + " with id " + std::to_string(token.id);
  const auto same_text = vocab_ids.find(token.content);
  if (same_text != vocab_ids.end()) {
    if (same_text->second == token.id) return ok_status();
    return invalid_argument(name + " has id " + std::to_string(same_text->second) +
                            " in model.vocab, wanted one id");
  }
  const auto by_id = [](const VocabEntry& entry, int32_t id) { return entry.id < id; };
  const auto same_id = std::lower_bound(spec.vocab.begin(), spec.vocab.end(), token.id, by_id);
  if (same_id == spec.vocab.end() || same_id->id != token.id) return ok_status();
  return invalid_argument(name + ": model.vocab has " + describe_json(same_id->spelling) +
                          " with that id, wanted distinct ids");
}

Status parse_added_tokens(const JsonFields& root, TokenizerSpec* spec) {
  if (root.field("added_tokens").is_null()) return ok_status();
  WARPROLL_TRY(root.require_array("added_tokens"));
  std::unordered_map<std::string_view, int32_t> vocab_ids;
  vocab_ids.reserve(spec->vocab.size());
  for (const VocabEntry& entry : spec->vocab) vocab_ids.emplace(entry.spelling, entry.id);

  std::unordered_set<int32_t> ids;
  std::unordered_set<std::string> contents;
  const json& tokens = root.field("added_tokens");
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string path = "added_tokens[" + std::to_string(i) + "]";
    WARPROLL_TRY_ASSIGN(token, parse_added_token(tokens[i], path));
    if (!ids.insert(token.id).second) {
      return invalid_argument(path + ".id is " + std::to_string(token.id) +
                              ", which an added token before it has; wanted distinct ids");
    }
    if (!contents.insert(token.content).second) {
      return invalid_argument(path + ".content is " + describe_json(token.content) +
                              ", which an added token before it has; wanted distinct contents");
    }
    WARPROLL_TRY(check_against_vocab(token, *spec, vocab_ids).with_context(path));
    spec->added.push_back(std::move(token));
  }
  std::sort(spec->added.begin(), spec->added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return ok_status();
}

}  // namespace

Result<TokenizerSpec> parse_tokenizer_json(std::string_view text) {
  WARPROLL_TRY_ASSIGN(file, parse_strict_json(text));
  WARPROLL_TRY_ASSIGN(root, JsonFields::of(file, ""));
  const json& version = root.field("version");
  if (!version.is_null() && version != "1.0") return json_mismatch("version", version, "\"1.0\"");
  WARPROLL_TRY(require_null(root, "truncation"));
  WARPROLL_TRY(require_null(root, "padding"));
  TokenizerSpec spec;
  WARPROLL_TRY(parse_bpe_model(root, &spec));
  WARPROLL_TRY_ASSIGN(nfc, parse_normalizer(root));
  spec.nfc = nfc;
  WARPROLL_TRY(parse_pre_tokenizer(root, &spec));
  WARPROLL_TRY(check_post_processor(root));
  WARPROLL_TRY(check_decoder(root));
  WARPROLL_TRY(parse_added_tokens(root, &spec));
  return spec;
}

}  // namespace warproll
