// One lane's share of one tile: what pack_*_cpu and the CUDA pack kernel both do, so that a tile
// packed on either side has the same bytes. Internal to kernels/moe. Thread: pure functions.
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

// Rows 0..7 of a tile come from `low`, rows 8..15 from `high`; gate_up: low = gate, high = up.
struct TileSource {
  WeightView low, high;
  bool gate_up = false;
};

WARPROLL_HD int32_t source_row(const TileSource& s, int32_t tile, int32_t r) {
  return s.gate_up ? tile * 8 + r % 8 : tile * kTileRows + r;
}

WARPROLL_HD const std::byte* row_data(const WeightView& w, int32_t expert, int32_t row,
                                      int32_t element_bytes) {
  return w.data + static_cast<uint64_t>(expert) * w.matrix_stride_bytes +
         static_cast<uint64_t>(row) * static_cast<uint64_t>(w.cols) * element_bytes;
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

// The F32 exponent field (0 .. 255) that a row's largest magnitude has: of its values (BF16) or of
// its block scales (MXFP8). Rows of tiny values count as 2^-111 (2^-119), which keeps every factor
// below a normal float. 255: the row holds an inf or NaN.
WARPROLL_HD int32_t row_exponent(const WeightView& w, int32_t expert, int32_t row) {
  int32_t largest = w.format == WeightFormat::kMxfp8 ? 8 : 16;
  if (w.format == WeightFormat::kMxfp8) {
    const int32_t blocks = w.cols / kTileBlock;
    const auto* scales = reinterpret_cast<const uint8_t*>(w.scales) +
                         static_cast<uint64_t>(expert) * w.scale_stride_bytes +
                         static_cast<uint64_t>(row) * blocks;
    for (int32_t b = 0; b < blocks; ++b) largest = scales[b] > largest ? scales[b] : largest;
  } else if (w.format == WeightFormat::kBf16) {
    const auto* values = reinterpret_cast<const uint16_t*>(row_data(w, expert, row, 2));
    for (int32_t c = 0; c < w.cols; ++c) {
      const int32_t exponent = values[c] >> 7 & 0xff;
      largest = exponent > largest ? exponent : largest;
    }
  }
  return largest;
}

// log2 of what the packed F16 values of a row are multiplied by, towards F16's top.
inline constexpr int32_t kBf16Headroom = 14;  // largest value 2^14 .. 2^15
inline constexpr int32_t kMxfp8Headroom = 7;  // largest scale 2^7: 448 * 128 < 65504

// The row scale, as BF16 bits: a power of two, exact.
WARPROLL_HD uint16_t row_scale_bits(const WeightView& w, int32_t exponent) {
  if (w.format == WeightFormat::kF16 || w.format == WeightFormat::kFp8Block) return 0x3f80;  // 1
  if (exponent == 255 && w.format == WeightFormat::kMxfp8) return 0x7fc0;                    // NaN
  const int32_t headroom = w.format == WeightFormat::kMxfp8 ? kMxfp8Headroom : kBf16Headroom;
  return static_cast<uint16_t>((exponent - headroom) << 7);
}

// MXFP8: the high byte of the F16 power of two 2^(scale - row's largest + headroom).
WARPROLL_HD uint8_t block_scale_byte(int32_t scale, int32_t row_exponent) {
  const int32_t power = scale - row_exponent + kMxfp8Headroom;
  if (power >= -14) return static_cast<uint8_t>((power + 15) << 2);
  return power == -15 ? 2 : power == -16 ? 1 : 0;
}

// The F16 bits of column c of a BF16 or F16 row.
WARPROLL_HD uint16_t f16_of(const WeightView& w, const std::byte* row, int32_t c,
                            int32_t exponent) {
  const uint16_t bits = reinterpret_cast<const uint16_t*>(row)[c];
  if (w.format == WeightFormat::kF16) return bits;
  const float up = float_of_bits(static_cast<uint32_t>(254 + kBf16Headroom - exponent) << 23);
  return half_bits(float_of_bits(static_cast<uint32_t>(bits) << 16) * up);
}

// Lane `lane` (0 .. 31) of block `block` of a tile: 16 bytes (FP8) or 2 x 16 bytes (F16), at
// block_out + [step * 512 +] lane * 16. `exponents` [16]: row_exponent of every row of the tile.
WARPROLL_HD void pack_lane(const TileSource& s, int32_t expert, int32_t tile, int32_t block,
                           int32_t lane, const int32_t* exponents, std::byte* block_out) {
  const int32_t g = lane / 4, t = lane % 4;
  const bool fp8 = s.low.format == WeightFormat::kMxfp8 || s.low.format == WeightFormat::kFp8Block;
  for (int32_t half = 0; half < 2; ++half) {
    const WeightView& w = half == 0 ? s.low : s.high;
    const int32_t r = g + half * 8;
    const std::byte* row = row_data(w, expert, source_row(s, tile, r), fp8 ? 1 : 2);
    for (int32_t i = 0; i < 8; ++i) {  // place in the lane's eight columns
      const int32_t c = block * kTileBlock + i / 2 * 8 + 2 * t + i % 2;
      if (fp8) {
        block_out[lane * 16 + half * 8 + i] = row[c];
      } else {  // step i / 4, then k half i / 2 % 2, then row half, then i % 2
        auto* out = reinterpret_cast<uint16_t*>(block_out + i / 4 * 512 + lane * 16);
        out[i / 2 % 2 * 4 + half * 2 + i % 2] = f16_of(w, row, c, exponents[r]);
      }
    }
  }
}

// The 16 scale bytes after a block of FP8, rows g and g + 8, by one thread for each g of 8.
WARPROLL_HD void pack_scales(const TileSource& s, int32_t expert, int32_t tile, int32_t block,
                             int32_t g, const int32_t* exponents, std::byte* out) {
  for (int32_t half = 0; half < 2; ++half) {
    const WeightView& w = half == 0 ? s.low : s.high;
    const int32_t r = g + half * 8;
    const int32_t row = source_row(s, tile, r);
    const std::byte* matrix = w.scales + static_cast<uint64_t>(expert) * w.scale_stride_bytes;
    if (w.format == WeightFormat::kMxfp8) {
      const auto scale =
          static_cast<int32_t>(matrix[static_cast<uint64_t>(row) * (w.cols / kTileBlock) + block]);
      out[g * 2 + half] = static_cast<std::byte>(block_scale_byte(scale, exponents[r]));
    } else if (g == 0) {
      const int32_t groups = (w.cols + w.block_cols - 1) / w.block_cols;
      const auto index =
          static_cast<uint64_t>(row / w.block_rows) * groups + block * kTileBlock / w.block_cols;
      float scale = 0.0f;
      if (w.scale_dtype == Dtype::kF32) {
        memcpy(&scale, matrix + index * 4, 4);
      } else {
        scale = float_of_bits(
            static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(matrix)[index]) << 16);
      }
      memcpy(out + half * 4, &scale, 4);
      memset(out + 8 + half * 4, 0, 4);
    }
  }
}

}  // namespace warproll
