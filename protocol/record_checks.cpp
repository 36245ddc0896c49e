#include "protocol/record_checks.h"

#include "protocol/utf8.h"

namespace warproll {

Status check_utf8(std::string_view name, std::string_view text) {
  if (is_valid_utf8(text)) return {};
  return invalid_argument(std::string(name) + " (" + std::to_string(text.size()) +
                          " bytes) is not UTF-8");
}

Status check_text(std::string_view name, std::string_view text, size_t max_bytes) {
  if (text.empty() || text.size() > max_bytes) {
    return invalid_argument(std::string(name) + " has " + std::to_string(text.size()) +
                            " bytes, wanted 1.." + std::to_string(max_bytes));
  }
  return check_utf8(name, text);
}

Status check_ids(std::string_view name, const std::vector<int32_t>& ids, int32_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && (vocab_size <= 0 || ids[i] < vocab_size)) continue;
    const std::string wanted =
        vocab_size > 0 ? "0.." + std::to_string(vocab_size - 1) : std::string(">= 0");
    return invalid_argument(std::string(name) + "[" + std::to_string(i) + "] is " +
                            std::to_string(ids[i]) + ", wanted " + wanted);
  }
  return {};
}

}  // namespace warproll
