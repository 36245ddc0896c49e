#include "kernels/weight_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "kernels/check.h"
#include "kernels/dequantise.h"
#include "kernels/lanes.h"

namespace warproll {
namespace {

constexpr int32_t kChunkCols = 512;  // columns dequantised at a time: kRowTile * 2 KB stays in L1

template <typename T>
WARPROLL_INLINE T load_as(const std::byte* data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// The arithmetic forms of f16_to_f32 and e4m3_to_f32 (kernels/dtype.h), which vectorise.
WARPROLL_INLINE float f16_value(uint32_t bits) {
  const uint32_t magnitude = (bits & 0x7fffu) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const uint32_t finite = std::bit_cast<uint32_t>(scaled);
  const uint32_t special = magnitude | 0x7f800000u;
  const uint32_t value = (bits & 0x7c00u) == 0x7c00u ? special : finite;
  return std::bit_cast<float>(value | ((bits & 0x8000u) << 16));
}
WARPROLL_INLINE float e4m3_value(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fu;
  const float normal = std::bit_cast<float>((magnitude << 20) + (120u << 23));
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f;
  const float finite = magnitude < 8u ? subnormal : normal;
  const uint32_t value = magnitude == 0x7fu ? 0x7fc00000u : std::bit_cast<uint32_t>(finite);
  return std::bit_cast<float>(value | ((bits & 0x80u) << 24));
}

WARPROLL_INLINE float scale_at(const WeightView& w, int64_t index) {
  switch (w.scale_dtype) {
    case Dtype::kF32:
      return load_as<float>(w.scales, index);
    case Dtype::kBf16:
      return std::bit_cast<float>(static_cast<uint32_t>(load_as<uint16_t>(w.scales, index)) << 16);
    default:
      return e8m0_to_f32(load_as<uint8_t>(w.scales, index));
  }
}

// Columns [begin, begin + count), walked by scale block.
WARPROLL_INLINE void dequantise_scaled(const WeightView& w, int32_t row, int32_t begin,
                                       int32_t count, float* out) {
  const std::byte* elements = w.data + static_cast<int64_t>(row) * w.cols;
  const int64_t blocks_per_row = (w.cols + w.block_cols - 1) / w.block_cols;
  const int64_t first_scale = row / w.block_rows * blocks_per_row;
  for (int32_t c = begin; c < begin + count;) {
    const int32_t end = std::min((c / w.block_cols + 1) * w.block_cols, begin + count);
    const float scale = scale_at(w, first_scale + c / w.block_cols);
    for (; c < end; ++c) {
      out[c - begin] = e4m3_value(static_cast<uint32_t>(elements[c])) * scale;
    }
  }
}

WARPROLL_INLINE void dequantise_piece(const WeightView& w, int32_t row, int32_t begin,
                                      int32_t count, float* out) {
  const int64_t first = static_cast<int64_t>(row) * w.cols + begin;
  switch (w.format) {
    case WeightFormat::kF32:
      std::memcpy(out, w.data + first * 4, static_cast<size_t>(count) * 4);
      return;
    case WeightFormat::kF16:
      for (int32_t i = 0; i < count; ++i) {
        out[i] = f16_value(load_as<uint16_t>(w.data, first + i));
      }
      return;
    case WeightFormat::kBf16:
      for (int32_t i = 0; i < count; ++i) {
        const uint32_t bits = load_as<uint16_t>(w.data, first + i);
        out[i] = std::bit_cast<float>(bits << 16);
      }
      return;
    case WeightFormat::kMxfp8:
    case WeightFormat::kFp8Block:
      dequantise_scaled(w, row, begin, count, out);
      return;
  }
}

// acc[i][r] += lanes of rows[r] * x[i] over one chunk; Rows x Tokens accumulators in registers.
template <int Rows, int Tokens>
WARPROLL_INLINE void accumulate(const float (*rows)[kChunkCols], const float* const* x,
                                int32_t begin, int32_t count, Lanes (*acc)[kRowTile]) {
  Lanes sum[Tokens][Rows];
  for (int t = 0; t < Tokens; ++t) {
    for (int r = 0; r < Rows; ++r) sum[t][r] = acc[t][r];
  }
  Lanes w[Rows], v;
  int32_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    for (int r = 0; r < Rows; ++r) load_lanes(w[r], rows[r] + c);
    for (int t = 0; t < Tokens; ++t) {
      load_lanes(v, x[t] + begin + c);
      for (int r = 0; r < Rows; ++r) sum[t][r] += w[r] * v;
    }
  }
  if (c < count) {
    for (int r = 0; r < Rows; ++r) load_lanes_tail(w[r], rows[r] + c, count - c);
    for (int t = 0; t < Tokens; ++t) {
      load_lanes_tail(v, x[t] + begin + c, count - c);
      for (int r = 0; r < Rows; ++r) sum[t][r] += w[r] * v;
    }
  }
  for (int t = 0; t < Tokens; ++t) {
    for (int r = 0; r < Rows; ++r) acc[t][r] = sum[t][r];
  }
}

template <int Rows>
WARPROLL_INLINE void dot_tile(const WeightView& w, int32_t row_begin, const float* const* x,
                              int32_t num_x, float* const* y) {
  alignas(64) float rows[Rows][kChunkCols];
  Lanes acc[kTokenTile][kRowTile];
  for (int32_t t = 0; t < num_x; ++t) {
    for (int r = 0; r < Rows; ++r) acc[t][r] = Lanes{};
  }
  for (int32_t begin = 0; begin < w.cols; begin += kChunkCols) {
    const int32_t count = std::min(kChunkCols, w.cols - begin);
    for (int r = 0; r < Rows; ++r) dequantise_piece(w, row_begin + r, begin, count, rows[r]);
    int32_t t = 0;
    for (; t + 2 <= num_x; t += 2) accumulate<Rows, 2>(rows, x + t, begin, count, acc + t);
    if (t < num_x) accumulate<Rows, 1>(rows, x + t, begin, count, acc + t);
  }
  for (int32_t t = 0; t < num_x; ++t) {
    if constexpr (Rows == 4) {
      fold_four(acc[t], y[t]);
    } else {
      for (int r = 0; r < Rows; ++r) y[t][r] = fold_lanes(acc[t][r]);
    }
  }
}

}  // namespace

WARPROLL_VECTOR_CLONES void dequantise_row(const WeightView& weight, int32_t row, int32_t begin,
                                           int32_t count, float* out) {
  dequantise_piece(weight, row, begin, count, out);
}

WARPROLL_VECTOR_CLONES void dot_rows(const WeightView& weight, int32_t row_begin, int32_t row_count,
                                     const float* const* x, int32_t num_x, float* const* y) {
  if (row_count == kRowTile) return dot_tile<kRowTile>(weight, row_begin, x, num_x, y);
  float* row_y[kTokenTile];
  for (int32_t r = 0; r < row_count; ++r) {
    for (int32_t t = 0; t < num_x; ++t) row_y[t] = y[t] + r;
    dot_tile<1>(weight, row_begin + r, x, num_x, row_y);
  }
}

void dequantise_cpu(const WeightView& weight, int32_t row_begin, int32_t row_count,
                    int32_t col_begin, int32_t col_count, float* out) {
  check_weight_view(weight, "dequantise");
  check_argument(row_begin >= 0 && row_count >= 0 && row_count <= weight.rows - row_begin &&
                     col_begin >= 0 && col_count >= 0 && col_count <= weight.cols - col_begin,
                 [&] {
                   return "dequantise: rows " + std::to_string(row_begin) + " + " +
                          std::to_string(row_count) + ", columns " + std::to_string(col_begin) +
                          " + " + std::to_string(col_count) + " are outside [" +
                          std::to_string(weight.rows) + ", " + std::to_string(weight.cols) + "]";
                 });
  for (int32_t r = 0; r < row_count; ++r) {
    dequantise_row(weight, row_begin + r, col_begin, col_count,
                   out + static_cast<int64_t>(r) * col_count);
  }
}

void check_weight_view(const WeightView& w, const char* what) {
  const auto fail = [&](const std::string& problem) {
    return std::string(what) + ": weight [" + std::to_string(w.num_matrices) + ", " +
           std::to_string(w.rows) + ", " + std::to_string(w.cols) + "] " + problem;
  };
  check_argument(w.num_matrices >= 0 && w.rows >= 0 && w.cols >= 0,
                 [&] { return fail("has a negative dimension"); });
  const bool empty = w.num_matrices == 0 || w.rows == 0 || w.cols == 0;
  check_argument(empty || w.data != nullptr, [&] { return fail("has no data"); });
  if (w.format == WeightFormat::kMxfp8) {
    check_argument(w.block_rows == 1 && w.block_cols == 32 && w.cols % 32 == 0 &&
                       w.scale_dtype == Dtype::kF8E8M0,
                   [&] {
                     return fail("is MXFP8 with blocks [" + std::to_string(w.block_rows) + ", " +
                                 std::to_string(w.block_cols) + "] and " +
                                 std::string(to_string(w.scale_dtype)) +
                                 " scales, wanted [1, 32], F8_E8M0, columns in multiples of 32");
                   });
  } else if (w.format == WeightFormat::kFp8Block) {
    check_argument(w.block_rows > 0 && w.block_cols > 0 &&
                       (w.scale_dtype == Dtype::kF32 || w.scale_dtype == Dtype::kBf16),
                   [&] {
                     return fail("is block FP8 with blocks [" + std::to_string(w.block_rows) +
                                 ", " + std::to_string(w.block_cols) + "] and " +
                                 std::string(to_string(w.scale_dtype)) +
                                 " scales, wanted positive blocks and F32 or BF16");
                   });
  } else {
    return;
  }
  check_argument(empty || w.scales != nullptr, [&] { return fail("has no scales"); });
}

}  // namespace warproll
