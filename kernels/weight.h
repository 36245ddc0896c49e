// WeightView: one weight matrix (or a stack of E of them) inside an arena, in any checkpoint
// format. Row-major [rows, cols]; y = W x has rows outputs. Does not own. Thread: plain values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace warproll {

enum class WeightFormat : uint8_t {
  kF32,
  kF16,
  kBf16,
  kMxfp8,     // E4M3 elements; E8M0 scale per 32 columns: scales [rows, cols / 32]
  kFp8Block,  // E4M3 elements; F32 or BF16 scale per block: scales [ceil(rows/BR), ceil(cols/BC)]
};

[[nodiscard]] constexpr bool is_fp8(WeightFormat format) {
  return format == WeightFormat::kMxfp8 || format == WeightFormat::kFp8Block;
}

struct WeightView {
  WeightFormat format = WeightFormat::kF32;
  const std::byte* data = nullptr;    // [num_matrices, rows, cols]
  const std::byte* scales = nullptr;  // null for the unscaled formats, or where elements go alone
  Dtype scale_dtype = Dtype::kF8E8M0;
  int32_t num_matrices = 1;
  int32_t rows = 0;
  int32_t cols = 0;
  int32_t block_rows = 1;            // BR, kFp8Block only
  int32_t block_cols = 32;           // BC
  uint64_t matrix_stride_bytes = 0;  // between matrices of data
  uint64_t scale_stride_bytes = 0;   // between matrices of scales

  [[nodiscard]] WeightView matrix(int32_t index) const {
    WeightView view = *this;
    view.num_matrices = 1;
    if (view.data != nullptr) view.data += static_cast<uint64_t>(index) * matrix_stride_bytes;
    if (view.scales != nullptr) view.scales += static_cast<uint64_t>(index) * scale_stride_bytes;
    return view;
  }

  // Rows [begin, begin + count) of every matrix: gate and up of a gate_up slot, say. Of kFp8Block,
  // begin must be a multiple of block_rows.
  [[nodiscard]] WeightView slice_rows(int32_t begin, int32_t count) const {
    WeightView view = *this;
    const auto first = static_cast<uint64_t>(begin);
    const auto columns = static_cast<uint64_t>(cols);
    const uint64_t element_bytes = format == WeightFormat::kF32 ? 4
                                   : format == WeightFormat::kF16 || format == WeightFormat::kBf16
                                       ? 2
                                       : 1;
    view.rows = count;
    if (view.data != nullptr) view.data += first * columns * element_bytes;
    if (view.scales == nullptr) return view;
    if (format == WeightFormat::kMxfp8) view.scales += first * (columns / 32);
    if (format == WeightFormat::kFp8Block) {
      const auto br = static_cast<uint64_t>(block_rows);
      const auto bc = static_cast<uint64_t>(block_cols);
      view.scales += first / br * ((columns + bc - 1) / bc) * dtype_bytes(scale_dtype);
    }
    return view;
  }
};

}  // namespace warproll
