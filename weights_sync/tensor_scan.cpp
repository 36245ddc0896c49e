#include "weights_sync/tensor_scan.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

namespace warproll {
namespace {

// Blocks are small enough to stay in L1 and large enough that the search after a hit is rare work.
constexpr uint64_t kBlockElements = 1024;

template <typename Bits, typename IsBad>
std::optional<uint64_t> find(std::span<const std::byte> bytes, const IsBad& is_bad) {
  const uint64_t count = bytes.size() / sizeof(Bits);
  Bits block[kBlockElements];
  for (uint64_t start = 0; start < count; start += kBlockElements) {
    const uint64_t n = std::min(kBlockElements, count - start);
    std::memcpy(block, bytes.data() + start * sizeof(Bits), n * sizeof(Bits));
    bool any = false;
    for (uint64_t i = 0; i < n; ++i) any |= is_bad(block[i]);  // no early exit: vectorises
    if (any) return start + static_cast<uint64_t>(std::find_if(block, block + n, is_bad) - block);
  }
  return std::nullopt;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

}  // namespace

std::optional<uint64_t> find_not_finite(Dtype dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case Dtype::kF32:
      return find<uint32_t>(bytes, [](uint32_t b) { return (b & 0x7f800000u) == 0x7f800000u; });
    case Dtype::kF16:
      return find<uint16_t>(bytes, [](uint16_t b) { return (b & 0x7c00u) == 0x7c00u; });
    case Dtype::kBf16:
      return find<uint16_t>(bytes, [](uint16_t b) { return (b & 0x7f80u) == 0x7f80u; });
    case Dtype::kF8E4M3:
      return find<uint8_t>(bytes, [](uint8_t b) { return (b & 0x7fu) == 0x7fu; });
    case Dtype::kF8E8M0:
      return find<uint8_t>(bytes, [](uint8_t b) { return b == 255; });
    case Dtype::kU8:
    case Dtype::kU16:
    case Dtype::kI32:
    case Dtype::kI64:
      return std::nullopt;
  }
  return std::nullopt;
}

Dtype scan_dtype(const TensorInfo& tensor) {
  const bool is_scale =
      ends_with(tensor.name, "weight_scale") || ends_with(tensor.name, "_scale_inv");
  return tensor.dtype == Dtype::kU8 && is_scale ? Dtype::kF8E8M0 : tensor.dtype;
}

Status not_finite_error(std::string_view tensor_name, Dtype dtype, uint64_t element_index,
                        std::span<const std::byte> element) {
  std::string bits;
  for (size_t i = element.size(); i-- > 0;) {  // little-endian
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", std::to_integer<unsigned>(element[i]));
    bits += digits;
  }
  return invalid_argument("tensor '" + std::string(tensor_name) + "': element " +
                          std::to_string(element_index) + " is NaN or Inf (" +
                          std::string(to_string(dtype)) + " 0x" + bits + "), wanted finite values");
}

}  // namespace warproll
