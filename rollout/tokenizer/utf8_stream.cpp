#include "rollout/tokenizer/utf8_stream.h"

#include <algorithm>

namespace warproll {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct LeadByte {
  size_t length;  // 0: cannot lead
  uint8_t second_min;
  uint8_t second_max;
};

// The second byte carries every restriction: overlong forms, surrogates, the upper limit.
LeadByte lead_byte(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view bytes) {
  const LeadByte lead = lead_byte(static_cast<uint8_t>(bytes[0]));
  if (lead.length == 0) return {Utf8Kind::kInvalid, 1};
  const size_t available = std::min(lead.length, bytes.size());
  for (size_t i = 1; i < available; ++i) {
    const auto byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t low = i == 1 ? lead.second_min : 0x80;
    const uint8_t high = i == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, i};
  }
  if (available < lead.length) return {Utf8Kind::kIncomplete, available};
  return {Utf8Kind::kValid, lead.length};
}

std::optional<size_t> find_invalid_utf8(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Utf8Step step = utf8_step(bytes.substr(at));
    if (step.kind != Utf8Kind::kValid) return at;
    at += step.length;
  }
  return std::nullopt;
}

void Utf8Stream::feed(std::string_view bytes, std::string* text) {
  std::string joined;
  if (!pending_.empty()) {
    joined.append(pending_).append(bytes);
    pending_.clear();
    bytes = joined;
  }
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    if (step.kind == Utf8Kind::kIncomplete) {
      pending_ = bytes;
      return;
    }
    text->append(step.kind == Utf8Kind::kValid ? bytes.substr(0, step.length) : kReplacement);
    bytes.remove_prefix(step.length);
  }
}

void Utf8Stream::flush(std::string* text) {
  if (!pending_.empty()) text->append(kReplacement);
  pending_.clear();
}

}  // namespace warproll
