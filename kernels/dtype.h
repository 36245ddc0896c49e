// Element types of checkpoints, arenas and activations, and their exact conversions.
// Thread: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace warproll {

enum class Dtype : uint8_t { kF32, kF16, kBf16, kF8E4M3, kF8E8M0, kU8, kU16, kI32, kI64 };

size_t dtype_bytes(Dtype dtype);
std::string_view to_string(Dtype dtype);  // safetensors' word: "BF16", "F8_E4M3"
std::optional<Dtype> dtype_from_safetensors(std::string_view word);  // empty = not one of ours

// bf16 and f16 values live in uint16_t, e4m3 and e8m0 in uint8_t. All conversions are exact, and
// all roundings are to nearest, ties to even.
float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value);  // NaN stays NaN, overflow rounds to inf
float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);
float e4m3_to_f32(uint8_t bits);            // OCP E4M3: 0x7f and 0xff are NaN, no inf, max 448
uint8_t f32_to_e4m3_saturate(float value);  // |v| > 448 -> 448 with its sign; NaN -> 0x7f
float e8m0_to_f32(uint8_t bits);            // 2^(bits - 127); 255 = NaN

}  // namespace warproll
