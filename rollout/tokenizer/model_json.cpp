#include "rollout/tokenizer/model_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "protocol/strict_json.h"

namespace warproll {
namespace {

using nlohmann::json;
using VocabIds = std::unordered_map<std::string, int32_t>;

// Options of Hugging Face's BPE that change ids. (unk_token and fuse_unk do not: a byte-level
// vocabulary has every byte, see Tokenizer, so that nothing is unknown.)
Status check_options(const JsonFields& model) {
  WARPROLL_TRY_ASSIGN(type, model.string("type"));
  if (type != "BPE") return json_mismatch(model.path_of("type"), type, "\"BPE\"");
  const json& dropout = model.field("dropout");
  if (!dropout.is_null() && dropout != 0.0) {
    return json_mismatch(model.path_of("dropout"), dropout, "null or 0");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& value = model.field(key);
    if (!value.is_null() && value != "") {
      return json_mismatch(model.path_of(key), value, "null or \"\"");
    }
  }
  return model.require_false("byte_fallback");
}

Result<VocabIds> parse_vocab(const JsonFields& model, TokenizerSpec* spec) {
  const json& vocab = model.field("vocab");
  if (!vocab.is_object()) return json_mismatch(model.path_of("vocab"), vocab, "an object");
  VocabIds ids;
  ids.reserve(vocab.size());
  for (const auto& [spelling, value] : vocab.items()) {
    const std::string path = model.path_of("vocab[" + describe_json(spelling) + "]");
    WARPROLL_TRY_ASSIGN(id, parse_token_id(value, path));
    spec->vocab.push_back({id, spelling});
    ids.emplace(spelling, id);
  }
  std::sort(spec->vocab.begin(), spec->vocab.end(),
            [](const VocabEntry& a, const VocabEntry& b) { return a.id < b.id; });
  for (size_t i = 1; i < spec->vocab.size(); ++i) {
    const VocabEntry& entry = spec->vocab[i];
    if (entry.id != spec->vocab[i - 1].id) continue;
    return invalid_argument(model.path_of("vocab") + " has id " + std::to_string(entry.id) +
                            " twice, for " + describe_json(spec->vocab[i - 1].spelling) + " and " +
                            describe_json(entry.spelling) + ", wanted distinct ids");
  }
  return ids;
}

// Both spellings: "a b" and ["a", "b"].
Result<std::pair<std::string, std::string>> parse_merge(const json& merge,
                                                        const std::string& path) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return std::pair(text.substr(0, space), text.substr(space + 1));
    }
  }
  return json_mismatch(path, merge, "\"a b\" with one space, or [\"a\", \"b\"]");
}

Result<int32_t> vocab_id(const VocabIds& ids, const std::string& spelling,
                         const std::string& path) {
  const auto found = ids.find(spelling);
  if (found != ids.end()) return found->second;
  return invalid_argument(path + " names " + describe_json(spelling) +
                          ", which is not in model.vocab");
}

Status parse_merges(const JsonFields& model, const VocabIds& ids, TokenizerSpec* spec) {
  WARPROLL_TRY(model.require_array("merges"));
  const json& merges = model.field("merges");
  std::unordered_set<uint64_t> pairs;
  pairs.reserve(merges.size());
  spec->merges.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string path = model.path_of("merges[" + std::to_string(rank) + "]");
    WARPROLL_TRY_ASSIGN(pair, parse_merge(merges[rank], path));
    WARPROLL_TRY_ASSIGN(left, vocab_id(ids, pair.first, path));
    WARPROLL_TRY_ASSIGN(right, vocab_id(ids, pair.second, path));
    WARPROLL_TRY_ASSIGN(merged, vocab_id(ids, pair.first + pair.second, path));
    if (!pairs.insert(static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right)).second) {
      return invalid_argument(path + " merges " + describe_json(pair.first) + " and " +
                              describe_json(pair.second) +
                              ", which a merge before it does; wanted distinct pairs");
    }
    spec->merges.push_back({left, right, merged});
  }
  return ok_status();
}

}  // namespace

Result<int32_t> parse_token_id(const json& value, const std::string& path) {
  if (value.is_number_unsigned()) {
    const auto id = value.get<uint64_t>();
    if (id <= static_cast<uint64_t>(kMaxTokenId)) return static_cast<int32_t>(id);
  }
  return json_mismatch(path, value, "an integer 0.." + std::to_string(kMaxTokenId));
}

Status parse_bpe_model(const JsonFields& root, TokenizerSpec* spec) {
  WARPROLL_TRY_ASSIGN(model, root.object("model"));
  WARPROLL_TRY(check_options(model));
  WARPROLL_TRY_ASSIGN(ignore_merges, model.boolean_or("ignore_merges", false));
  spec->ignore_merges = ignore_merges;
  WARPROLL_TRY_ASSIGN(ids, parse_vocab(model, spec));
  return parse_merges(model, ids, spec);
}

}  // namespace warproll
