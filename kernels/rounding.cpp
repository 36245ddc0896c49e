#include "kernels/rounding.h"

#include <bit>
#include <string>

#include "kernels/check.h"
#include "kernels/lanes.h"

namespace warproll {
namespace {

WARPROLL_VECTOR_CLONES void round_to_bf16(float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(values[i]);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    values[i] = std::bit_cast<float>(is_nan ? bits | 0x00400000u : rounded);
  }
}

}  // namespace

void check_activation_dtype(Dtype dtype, const char* what) {
  check_argument(dtype == Dtype::kF32 || dtype == Dtype::kBf16 || dtype == Dtype::kF16, [&] {
    return std::string(what) + ": activation dtype is " + std::string(to_string(dtype)) +
           ", wanted F32, BF16 or F16";
  });
}

void round_activations(float* values, int64_t count, Dtype dtype) {
  if (dtype == Dtype::kBf16) return round_to_bf16(values, count);
  if (dtype != Dtype::kF16) return;
  for (int64_t i = 0; i < count; ++i) values[i] = f16_to_f32(f32_to_f16(values[i]));
}

}  // namespace warproll
