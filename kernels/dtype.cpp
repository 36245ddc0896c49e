#include "kernels/dtype.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace warproll {
namespace {

struct DtypeRow {
  Dtype dtype;
  size_t bytes;
  std::string_view word;
};
// In the order of the enum.
constexpr std::array<DtypeRow, 9> kDtypes{{
    {Dtype::kF32, 4, "F32"},
    {Dtype::kF16, 2, "F16"},
    {Dtype::kBf16, 2, "BF16"},
    {Dtype::kF8E4M3, 1, "F8_E4M3"},
    {Dtype::kF8E8M0, 1, "F8_E8M0"},
    {Dtype::kU8, 1, "U8"},
    {Dtype::kU16, 2, "U16"},
    {Dtype::kI32, 4, "I32"},
    {Dtype::kI64, 8, "I64"},
}};

const DtypeRow& row_of(Dtype dtype) {
  const auto index = static_cast<size_t>(dtype);
  if (index >= kDtypes.size()) {
    throw std::invalid_argument("dtype is " + std::to_string(index) + ", wanted 0 .. " +
                                std::to_string(kDtypes.size() - 1));
  }
  return kDtypes[index];
}

// Rounds away the low `drop` bits of a mantissa, ties to even; a carry runs on into the exponent,
// which is what rounding up past the last mantissa means.
constexpr uint32_t round_off(uint32_t bits, unsigned drop) {
  const uint32_t half = 1u << (drop - 1);
  return (bits + (half - 1) + ((bits >> drop) & 1u)) >> drop;
}

// A small float's bits to F32, exactly: `exponent_bits` with bias 2^(e-1) - 1, subnormals; no
// special values (the caller takes those out).
constexpr float small_to_f32(uint32_t magnitude, bool negative, int exponent_bits,
                             int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t exponent = magnitude >> mantissa_bits;
  const uint32_t mantissa = magnitude & ((1u << mantissa_bits) - 1);
  const uint32_t sign = negative ? 0x80000000u : 0u;
  if (exponent != 0) {
    const uint32_t f32_exponent = exponent + static_cast<uint32_t>(127 - bias);
    return std::bit_cast<float>(sign | (f32_exponent << 23) | (mantissa << (23 - mantissa_bits)));
  }
  const int lowest = 1 - bias - mantissa_bits;  // a subnormal is mantissa * 2^lowest
  const float unit = std::bit_cast<float>(static_cast<uint32_t>(127 + lowest) << 23);
  const float value = static_cast<float>(mantissa) * unit;
  return negative ? -value : value;
}

constexpr float e4m3_bits_to_f32(uint8_t bits) {
  if ((bits & 0x7fu) == 0x7fu) return std::numeric_limits<float>::quiet_NaN();
  return small_to_f32(bits & 0x7fu, (bits & 0x80u) != 0, 4, 3);
}

constexpr std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) table[i] = e4m3_bits_to_f32(static_cast<uint8_t>(i));
  return table;
}
constexpr std::array<float, 256> kE4M3 = make_e4m3_table();

// Magnitude bits of a finite |value| in a small float, rounded to nearest even; may exceed the
// format's largest finite magnitude, which the caller looks at.
uint32_t f32_to_small(uint32_t magnitude, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t smallest_normal = static_cast<uint32_t>(127 - bias + 1) << 23;
  const auto drop = static_cast<unsigned>(23 - mantissa_bits);
  if (magnitude >= smallest_normal) {
    return round_off(magnitude - (static_cast<uint32_t>(127 - bias) << 23), drop);
  }
  // Subnormal: adding 2^(lowest + 23) leaves mantissa * 2^lowest in the low bits, rounded by the
  // hardware to nearest even.
  const int lowest = 1 - bias - mantissa_bits;
  const uint32_t anchor = static_cast<uint32_t>(127 + lowest + 23) << 23;
  const float sum = std::bit_cast<float>(magnitude) + std::bit_cast<float>(anchor);
  return std::bit_cast<uint32_t>(sum) - anchor;
}

}  // namespace

size_t dtype_bytes(Dtype dtype) { return row_of(dtype).bytes; }

std::string_view to_string(Dtype dtype) { return row_of(dtype).word; }

std::optional<Dtype> dtype_from_safetensors(std::string_view word) {
  for (const DtypeRow& row : kDtypes) {
    if (row.word == word) return row.dtype;
  }
  return std::nullopt;
}

float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>(round_off(bits & 0x7fffffffu, 16) | ((bits >> 16) & 0x8000u));
}

float f16_to_f32(uint16_t bits) {
  const bool negative = (bits & 0x8000u) != 0;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {
    const uint32_t special = 0x7f800000u | ((magnitude & 0x3ffu) << 13);
    return std::bit_cast<float>(special | (negative ? 0x80000000u : 0u));
  }
  return small_to_f32(magnitude, negative, 5, 10);
}

uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  // 65520 is the midpoint between F16's largest value and the next power of two.
  if (magnitude >= std::bit_cast<uint32_t>(65520.0f)) return static_cast<uint16_t>(sign | 0x7c00u);
  return static_cast<uint16_t>(sign | f32_to_small(magnitude, 5, 10));
}

float e4m3_to_f32(uint8_t bits) { return kE4M3[bits]; }

uint8_t f32_to_e4m3_saturate(float value) {
  if (std::isnan(value)) return 0x7f;
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= std::bit_cast<uint32_t>(448.0f)) return static_cast<uint8_t>(sign | 0x7eu);
  return static_cast<uint8_t>(sign | f32_to_small(magnitude, 4, 3));
}

float e8m0_to_f32(uint8_t bits) {
  if (bits == 255) return std::numeric_limits<float>::quiet_NaN();
  // 2^-127 is below F32's smallest normal: a subnormal with one bit.
  if (bits == 0) return std::bit_cast<float>(0x00400000u);
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 23);
}

}  // namespace warproll
