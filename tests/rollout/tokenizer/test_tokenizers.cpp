#include "test_tokenizers.h"

#include <fstream>

#include "tests/golden_dir.h"

namespace warproll::testing {

using nlohmann::json;

std::string golden_path(const std::string& relative) { return golden_dir() + "/" + relative; }

json golden_json(const std::string& relative) {
  std::ifstream file(golden_path(relative));
  return json::parse(file);
}

std::shared_ptr<const Tokenizer> golden_tokenizer(const std::string& directory) {
  return Tokenizer::from_file(golden_path(directory + "/tokenizer.json")).value();
}

std::string byte_spelling(unsigned char byte) {
  // Written the long way round: the order in which GPT-2's table hands out U+0100 and on.
  int substitute = 0x100;
  for (int other = 0; other < 256; ++other) {
    const bool is_itself = (other >= 33 && other <= 126) || (other >= 161 && other != 173);
    const int code_point = is_itself ? other : substitute++;
    if (other != byte) continue;
    if (code_point < 0x80) return {static_cast<char>(code_point)};
    return {static_cast<char>(0xC0 + code_point / 64), static_cast<char>(0x80 + code_point % 64)};
  }
  return {};
}

json byte_tokenizer_json() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[byte_spelling(byte)] = byte;
  const auto added = [](int id, const char* content, bool special) {
    return json{{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", special}};
  };
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  return json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens",
               {added(256, "<|im_start|>", true), added(257, "<|im_end|>", true),
                added(258, "<think>", false)}},
              {"normalizer", nullptr},
              {"pre_tokenizer", byte_level},
              {"post_processor", nullptr},
              {"decoder", byte_level},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", false},
                {"vocab", vocab},
                {"merges", json::array()}}}};
}

std::shared_ptr<const Tokenizer> load(const json& tokenizer) {
  return Tokenizer::from_json(tokenizer.dump(), "test.json").value();
}

std::string refusal_of_text(const std::string& text) {
  const auto result = Tokenizer::from_json(text, "test.json");
  return result.ok() ? "" : result.status().message();
}

}  // namespace warproll::testing
