// tokenizer.json, encode, decode, incremental decoding and chat templates on any bytes.
// The first byte chooses a target; the rest is its input. A tokenizer.json from the fuzzer lacks
// the 256 byte tokens as good as always, so another target edits one that is complete.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/strict_json.h"
#include "rollout/tokenizer/byte_alphabet.h"
#include "rollout/tokenizer/chat_template.h"
#include "rollout/tokenizer/incremental_decoder.h"
#include "rollout/tokenizer/stop_string_matcher.h"
#include "rollout/tokenizer/tokenizer.h"
#include "rollout/tokenizer/utf8_stream.h"

namespace {

using nlohmann::json;
using warproll::DecodeOptions;
using warproll::Tokenizer;

void require(bool condition) {
  if (!condition) std::abort();
}

json complete_file() {
  const warproll::ByteAlphabet alphabet;
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[alphabet.character(byte)] = byte;
  for (const char* token : {"ab", "abab", "aa", "aaa"}) vocab[token] = 300 + vocab.size();
  const auto added = [](int id, const char* content, bool special, bool normalized) {
    return json{{"id", id},          {"content", content}, {"single_word", false},
                {"lstrip", false},   {"rstrip", false},    {"normalized", normalized},
                {"special", special}};
  };
  return {
      {"added_tokens", {added(256, "<s>", true, false), added(257, "<t>", false, true)}},
      {"normalizer", {{"type", "NFC"}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "ab ab", "a a", "aa a"}}}}};
}

// A control token may stand where text was only with match_special.
void check_tokenizer(const std::shared_ptr<const Tokenizer>& tokenizer, std::string_view bytes) {
  for (const bool match_special : {true, false}) {
    const auto ids = tokenizer->encode(bytes, {.match_special = match_special});
    if (!ids.ok()) continue;
    require(!warproll::find_invalid_utf8(bytes));
    for (const int32_t id : *ids) require(match_special || !tokenizer->is_special(id));
    require(!warproll::find_invalid_utf8(tokenizer->decode(*ids)));
  }
  std::vector<int32_t> ids;
  for (const char byte : bytes) ids.push_back(static_cast<uint8_t>(byte) * 3 / 2 - 4);
  for (const bool skip_special : {true, false}) {
    const DecodeOptions options{.skip_special = skip_special};
    warproll::IncrementalDecoder decoder(tokenizer, options);
    std::string joined;
    for (const int32_t id : ids) joined += decoder.feed(id);
    joined += decoder.flush();
    require(joined == tokenizer->decode(ids, options));
    require(!warproll::find_invalid_utf8(joined));
  }
}

// First a stop string up to a newline, then the text.
void check_stop_strings(std::string_view bytes) {
  const size_t end = std::min(bytes.find('\n'), bytes.size());
  const std::string stop(bytes.substr(0, end));
  const std::string_view text = bytes.substr(end);
  auto matcher = warproll::StopStringMatcher::create({stop});
  if (!matcher.ok()) return;
  std::string emitted;
  for (const char byte : text) emitted += matcher->feed({&byte, 1});
  emitted += matcher->flush();
  require(emitted == text.substr(0, text.find(stop)));
  require(matcher->stopped() == (text.find(stop) != std::string_view::npos));
}

void check_edited_file(std::string_view bytes) {
  json file = complete_file();
  const auto patch = warproll::parse_strict_json(bytes);  // bounded depth: merge_patch recurses
  if (!patch.ok() || !patch->is_object()) return;
  file.merge_patch(*patch);
  const auto tokenizer = Tokenizer::from_json(file.dump(), "fuzz");
  if (tokenizer.ok()) check_tokenizer(*tokenizer, bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto complete = Tokenizer::from_json(complete_file().dump(), "fuzz").value();
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      if (auto loaded = Tokenizer::from_json(input, "fuzz"); loaded.ok()) {
        check_tokenizer(*loaded, input);
      }
      break;
    case 1:
      check_edited_file(input);
      break;
    case 2:
      check_tokenizer(complete, input);
      break;
    case 3:
      static_cast<void>(warproll::recognize_chatml(input));
      break;
    default:
      check_stop_strings(input);
  }
  return 0;
}
