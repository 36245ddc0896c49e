#include "weights_sync/tensor_check.h"

#include <algorithm>
#include <limits>

#include "protocol/utf8.h"

namespace warproll {
namespace {

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr size_t kMaxShown = 200;
  constexpr char kHex[] = "0123456789abcdef";
  const bool is_utf8 = is_valid_utf8(text);
  size_t end = std::min(text.size(), kMaxShown);
  // Not through the middle of a character.
  while (end > 0 && end < text.size() && (text[end] & 0xc0) == 0x80) --end;
  std::string shown;
  for (const char c : text.substr(0, end)) {
    const auto byte = static_cast<unsigned char>(c);
    if (!is_control(c) && (is_utf8 || byte < 0x80)) {
      shown += c;
      continue;
    }
    shown += "\\x";
    shown += kHex[byte >> 4];
    shown += kHex[byte & 15];
  }
  if (end < text.size()) shown += "... (" + std::to_string(text.size()) + " bytes)";
  return shown;
}

Status check_tensor_name(std::string_view name) {
  if (name.empty() || name.size() > kMaxTensorNameBytes) {
    return invalid_argument("tensor name '" + printable(name) + "' has " +
                            std::to_string(name.size()) + " bytes, wanted 1 to " +
                            std::to_string(kMaxTensorNameBytes));
  }
  if (std::any_of(name.begin(), name.end(), is_control)) {
    return invalid_argument("tensor name '" + printable(name) +
                            "' has a control character, wanted none");
  }
  if (!is_valid_utf8(name)) {
    return invalid_argument("tensor name '" + printable(name) + "' is not UTF-8, wanted UTF-8");
  }
  return ok_status();
}

Result<uint64_t> checked_tensor_bytes(Dtype dtype, const std::vector<int64_t>& shape) {
  if (shape.size() > kMaxTensorRank) {
    return invalid_argument("shape has " + std::to_string(shape.size()) +
                            " dimensions, wanted at most " + std::to_string(kMaxTensorRank));
  }
  // The product without its zeros must fit too: [0, 2^40, 2^40] is nonsense, not an empty tensor.
  constexpr auto kLimit = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  uint64_t bytes = dtype_bytes(dtype);
  bool empty = false;
  for (const int64_t dimension : shape) {
    if (dimension < 0) {
      return invalid_argument("shape " + shape_to_string(shape) +
                              " has a negative dimension, wanted >= 0");
    }
    if (dimension == 0) {
      empty = true;
      continue;
    }
    if (bytes > kLimit / static_cast<uint64_t>(dimension)) {
      return invalid_argument("shape " + shape_to_string(shape) + " of " +
                              std::string(to_string(dtype)) +
                              " overflows, wanted less than 2^63 bytes");
    }
    bytes *= static_cast<uint64_t>(dimension);
  }
  return empty ? uint64_t{0} : bytes;
}

std::string shape_to_string(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t dimension : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(dimension);
  }
  return text + "]";
}

}  // namespace warproll
