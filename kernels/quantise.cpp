#include "kernels/quantise.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "kernels/check.h"
#include "kernels/parallel.h"

namespace warproll {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
constexpr int kE4M3MaxExponent = 8;  // 448 = 1.75 * 2^8

void load_block(const std::byte* source, Dtype dtype, float* out) {
  if (dtype == Dtype::kF32) {
    std::memcpy(out, source, kMxfp8BlockCols * sizeof(float));
    return;
  }
  uint16_t bits[kMxfp8BlockCols];
  std::memcpy(bits, source, sizeof(bits));
  for (int i = 0; i < kMxfp8BlockCols; ++i) {
    out[i] = dtype == Dtype::kBf16 ? bf16_to_f32(bits[i]) : f16_to_f32(bits[i]);
  }
}

// Index of the block's first non-finite value, or kMxfp8BlockCols.
int quantise_block(const float* x, uint8_t* elements, uint8_t* scale) {
  uint32_t amax_bits = 0;
  for (int i = 0; i < kMxfp8BlockCols; ++i) {
    amax_bits = std::max(amax_bits, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  }
  if (amax_bits >= 0x7f800000u) {
    *scale = 255;
    std::fill_n(elements, kMxfp8BlockCols, uint8_t{0});
    return static_cast<int>(
        std::find_if(x, x + kMxfp8BlockCols, [](float v) { return !std::isfinite(v); }) - x);
  }
  // The exponent field is floor(log2(amax)) + 127; subnormals have field 0 and end at the
  // smallest scale like every amax below 2^-119.
  const int field = static_cast<int>(amax_bits >> 23) - kE4M3MaxExponent;
  const int scale_byte = std::max(field, 0);
  *scale = static_cast<uint8_t>(scale_byte);
  const float inverse = std::bit_cast<float>(static_cast<uint32_t>(254 - scale_byte) << 23);
  for (int i = 0; i < kMxfp8BlockCols; ++i) elements[i] = f32_to_e4m3_saturate(x[i] * inverse);
  return kMxfp8BlockCols;
}

}  // namespace

void check_quantise_mxfp8(const QuantiseMxfp8Params& p) {
  check_argument(p.rows >= 0 && p.cols >= 0 && p.cols % kMxfp8BlockCols == 0, [&] {
    return "quantise_mxfp8: shape is [" + std::to_string(p.rows) + ", " + std::to_string(p.cols) +
           "], wanted columns in multiples of 32";
  });
  check_argument(p.source_dtype == Dtype::kF32 || p.source_dtype == Dtype::kF16 ||
                     p.source_dtype == Dtype::kBf16,
                 [&] {
                   return "quantise_mxfp8: source dtype is " +
                          std::string(to_string(p.source_dtype)) + ", wanted F32, F16 or BF16";
                 });
  const bool empty = p.rows == 0 || p.cols == 0;
  check_argument(empty || (p.source != nullptr && p.elements != nullptr && p.scales != nullptr),
                 [] { return std::string("quantise_mxfp8: a pointer is null"); });
}

std::optional<int64_t> quantise_mxfp8_cpu(const QuantiseMxfp8Params& p) {
  check_quantise_mxfp8(p);
  const int64_t blocks_per_row = p.cols / kMxfp8BlockCols;
  const int64_t element_bytes = static_cast<int64_t>(dtype_bytes(p.source_dtype));
  std::atomic<int64_t> first_bad{kNone};
  parallel_ranges(p.rows, p.rows * p.cols, [&](int64_t begin, int64_t end) {
    float x[kMxfp8BlockCols];
    for (int64_t block = begin * blocks_per_row; block < end * blocks_per_row; ++block) {
      const int64_t at = block * kMxfp8BlockCols;
      load_block(p.source + at * element_bytes, p.source_dtype, x);
      const int bad = quantise_block(x, p.elements + at, p.scales + block);
      if (bad == kMxfp8BlockCols) continue;
      int64_t seen = first_bad.load();
      while (at + bad < seen && !first_bad.compare_exchange_weak(seen, at + bad)) {
      }
    }
  });
  if (first_bad.load() == kNone) return std::nullopt;
  return first_bad.load();
}

}  // namespace warproll
