// One lane's share of one half tile: what pack's CPU twins and CUDA kernels both do, so that a tile
// packed on either side has the same bytes. A half tile is 8 neighbouring rows of one matrix, rows
// 0..7 or 8..15 of a tile; its bytes belong to it alone, so halves, elements and scales may be
// written in any order. Internal to kernels/moe. Thread: pure functions.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/moe/tiles.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define WARPROLL_HD __host__ __device__ inline
#else
#define WARPROLL_HD inline
#endif

namespace warproll {

// Where row `row` (multiple of 8, of the region's matrix) lies: tile of the matrix, half of it.
struct HalfTile {
  int32_t tile = 0;
  int32_t half = 0;
};
WARPROLL_HD HalfTile half_tile(int32_t row, bool gate_up, int32_t num_tiles) {
  if (!gate_up) return {row / kTileRows, row / 8 % 2};
  const int32_t gate_rows = num_tiles * 8;
  return row < gate_rows ? HalfTile{row / 8, 0} : HalfTile{(row - gate_rows) / 8, 1};
}

// One access of kBytes, both addresses multiples of it.
template <int32_t kBytes>
WARPROLL_HD void copy_aligned(void* to, const void* from) {
  memcpy(__builtin_assume_aligned(to, kBytes), __builtin_assume_aligned(from, kBytes), kBytes);
}

WARPROLL_HD const std::byte* row_data(const WeightView& w, int32_t matrix, int32_t row,
                                      int32_t element_bytes) {
  return w.data + static_cast<uint64_t>(matrix) * w.matrix_stride_bytes +
         static_cast<uint64_t>(row) * static_cast<uint64_t>(w.cols) * element_bytes;
}

// kMxfp8.
WARPROLL_HD const std::byte* scales_of_row(const WeightView& w, int32_t matrix, int32_t row) {
  return w.scales + static_cast<uint64_t>(matrix) * w.scale_stride_bytes +
         static_cast<uint64_t>(row) * (w.cols / kTileBlock);
}

WARPROLL_HD float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// F16 of a float, to nearest even; `f32_to_f16` on the host.
WARPROLL_HD uint16_t half_bits(float value) {
#ifdef __CUDA_ARCH__
  return __half_as_ushort(__float2half_rn(value));
#else
  return f32_to_f16(value);
#endif
}

inline constexpr int32_t kLeastMxfp8Exponent = 8;
inline constexpr int32_t kLeastBf16Exponent = 16;

// The F32 exponent field (0 .. 255) that a row's largest magnitude has: of its values (BF16) or of
// its block scales (MXFP8). Rows of tiny values count as 2^-111 (2^-119), which keeps every factor
// below a normal float. 255: the row holds an inf or NaN. Here of what `part` of `parts` threads
// sees of the row; the row's is the largest of all parts'.
WARPROLL_HD int32_t row_exponent(const WeightView& w, int32_t matrix, int32_t row, int32_t part,
                                 int32_t parts) {
  int32_t largest = w.format == WeightFormat::kMxfp8 ? kLeastMxfp8Exponent : kLeastBf16Exponent;
  if (w.format == WeightFormat::kMxfp8) {
    const int32_t blocks = w.cols / kTileBlock;
    const auto* scales = reinterpret_cast<const uint8_t*>(scales_of_row(w, matrix, row));
    for (int32_t b = part; b < blocks; b += parts)
      largest = scales[b] > largest ? scales[b] : largest;
  } else if (w.format == WeightFormat::kBf16) {
    const std::byte* values = row_data(w, matrix, row, 2);
    for (int32_t c = part * 2; c < w.cols; c += parts * 2) {
      uint32_t pair;
      copy_aligned<4>(&pair, values + c * 2);
      const auto low = static_cast<int32_t>(pair >> 7 & 0xff);
      const auto high = static_cast<int32_t>(pair >> 23 & 0xff);
      largest = low > largest ? low : largest;
      largest = high > largest ? high : largest;
    }
  }
  return largest;
}

// log2 of what the packed F16 values of a row are multiplied by, towards F16's top.
inline constexpr int32_t kBf16Headroom = 14;  // largest value 2^14 .. 2^15
inline constexpr int32_t kMxfp8Headroom = 7;  // largest scale 2^7: 448 * 128 < 65504

// The row scale, as BF16 bits: a power of two, exact.
WARPROLL_HD uint16_t row_scale_bits(WeightFormat format, int32_t exponent) {
  if (format == WeightFormat::kF16 || format == WeightFormat::kFp8Block) return 0x3f80;  // 1
  if (exponent == 255 && format == WeightFormat::kMxfp8) return 0x7fc0;                  // NaN
  const int32_t headroom = format == WeightFormat::kMxfp8 ? kMxfp8Headroom : kBf16Headroom;
  return static_cast<uint16_t>((exponent - headroom) << 7);
}

// MXFP8: the high byte of the F16 power of two 2^(scale - row's largest + headroom).
WARPROLL_HD uint8_t block_scale_byte(int32_t scale, int32_t row_exponent) {
  const int32_t power = scale - row_exponent + kMxfp8Headroom;
  if (power >= -14) return static_cast<uint8_t>((power + 15) << 2);
  return power == -15 ? 2 : power == -16 ? 1 : 0;
}

// The F16 bits of a BF16 or F16 value.
WARPROLL_HD uint16_t f16_of(WeightFormat format, uint16_t bits, int32_t exponent) {
  if (format == WeightFormat::kF16) return bits;
  const float up = float_of_bits(static_cast<uint32_t>(254 + kBf16Headroom - exponent) << 23);
  return half_bits(float_of_bits(static_cast<uint32_t>(bits) << 16) * up);
}

// Lane 4g + t (0 .. 31) of block `block` of a half tile: row `row` + g at the lane's eight columns,
// to `block_out`, the block's place in the record. `exponent`: of that row.
WARPROLL_HD void pack_lane(const WeightView& w, int32_t matrix, int32_t row, int32_t block,
                           int32_t lane, int32_t half, int32_t exponent, std::byte* block_out) {
  const int32_t g = lane / 4, t = lane % 4;
  const bool fp8 = is_fp8(w.format);
  const std::byte* from = row_data(w, matrix, row + g, fp8 ? 1 : 2);
  if (fp8) {
    alignas(8) uint16_t pairs[4];
    for (int32_t i = 0; i < 4; ++i) {
      copy_aligned<2>(&pairs[i], from + block * kTileBlock + i * 8 + 2 * t);
    }
    copy_aligned<8>(block_out + lane * 16 + half * 8, pairs);
    return;
  }
  for (int32_t i = 0; i < 4; ++i) {  // step i / 2, then k half i % 2, then row half
    alignas(4) uint16_t pair[2];
    copy_aligned<4>(pair, from + (block * kTileBlock + i * 8 + 2 * t) * 2);
    pair[0] = f16_of(w.format, pair[0], exponent);
    pair[1] = f16_of(w.format, pair[1], exponent);
    copy_aligned<4>(block_out + i / 2 * 512 + lane * 16 + i % 2 * 8 + half * 4, pair);
  }
}

// The scale bytes after a block of FP8 that row `row` + g of a half tile has, g of 0 .. 7.
WARPROLL_HD void pack_scale(const WeightView& w, int32_t matrix, int32_t row, int32_t block,
                            int32_t g, int32_t half, int32_t exponent, std::byte* out) {
  if (w.format == WeightFormat::kMxfp8) {
    const auto scale = static_cast<int32_t>(scales_of_row(w, matrix, row + g)[block]);
    out[g * 2 + half] = static_cast<std::byte>(block_scale_byte(scale, exponent));
  } else if (g == 0) {
    const std::byte* scales = w.scales + static_cast<uint64_t>(matrix) * w.scale_stride_bytes;
    const int32_t groups = (w.cols + w.block_cols - 1) / w.block_cols;
    const auto index =
        static_cast<uint64_t>(row / w.block_rows) * groups + block * kTileBlock / w.block_cols;
    float scale = 0.0f;
    if (w.scale_dtype == Dtype::kF32) {
      copy_aligned<4>(&scale, scales + index * 4);
    } else {
      uint16_t bits;
      copy_aligned<2>(&bits, scales + index * 2);
      scale = float_of_bits(static_cast<uint32_t>(bits) << 16);
    }
    constexpr float kUnused = 0.0f;
    copy_aligned<4>(out + half * 4, &scale);
    copy_aligned<4>(out + 8 + half * 4, &kUnused);
  }
}

}  // namespace warproll
