#include "rollout/tokenizer/tokenizer.h"

#include <cstdio>
#include <utility>

#include "rollout/tokenizer/file_text.h"
#include "rollout/tokenizer/text_encoder.h"
#include "rollout/tokenizer/tokenizer_json.h"
#include "rollout/tokenizer/tokenizer_tables.h"
#include "rollout/tokenizer/utf8_stream.h"

namespace warproll {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // ICU and the merger index with 32 bits

Status check_text(std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return invalid_argument("the text to encode has " + std::to_string(text.size()) +
                            " bytes, wanted at most " + std::to_string(kMaxTextBytes));
  }
  const std::optional<size_t> invalid = find_invalid_utf8(text);
  if (!invalid) return ok_status();
  char byte[5];
  std::snprintf(byte, sizeof(byte), "0x%02X", static_cast<uint8_t>(text[*invalid]));
  return invalid_argument("the text to encode has the byte " + std::string(byte) + " at offset " +
                          std::to_string(*invalid) + ", wanted UTF-8");
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerTables> tables) : tables_(std::move(tables)) {}
Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_file(const std::string& path) {
  WARPROLL_TRY_ASSIGN(text, read_file_text(path));
  return from_json(text, path);
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_json(std::string_view text,
                                                              std::string_view name) {
  Result<TokenizerSpec> spec = parse_tokenizer_json(text);
  if (!spec.ok()) return spec.status().with_context(name);
  auto tables = TokenizerTables::build(*std::move(spec));
  if (!tables.ok()) return tables.status().with_context(name);
  return std::shared_ptr<const Tokenizer>(new Tokenizer(*std::move(tables)));
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  WARPROLL_TRY(check_text(text));
  return TextEncoder(*tables_, options).encode(text);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, DecodeOptions options) const {
  std::string text;
  Utf8Stream stream;
  for (const int32_t id : ids) {
    if (!options.skip_special || !is_special(id)) stream.feed(token_bytes(id), &text);
  }
  stream.flush(&text);
  return text;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return tables_->bytes[id];
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && tables_->special[id];
}

std::optional<int32_t> Tokenizer::id_of_token(std::string_view token) const {
  const auto found = tables_->ids.find(std::string(token));
  if (found == tables_->ids.end()) return std::nullopt;
  return found->second;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(tables_->bytes.size()); }

const Digest& Tokenizer::digest() const { return tables_->digest; }

}  // namespace warproll
