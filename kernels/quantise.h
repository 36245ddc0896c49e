// quantise_mxfp8: a matrix to MXFP8, the OCP Microscaling recipe: per 32 columns of a row one
// E8M0 scale 2^(floor(log2(amax)) - 8), elements x / scale rounded to E4M3 to nearest even,
// saturated at 448. Source: OCP MX specification v1.0, section 6.3.
// Edges: a block of zeros (and amax below 2^-119) gets the smallest scale, 2^-127, byte 0; signed
// zeros keep their sign. Exact in every step, so equal inputs give equal bits on any machine.
// Thread: pure function; OpenMP over rows inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/cuda/stream.h"
#include "kernels/dtype.h"

namespace warproll {

inline constexpr int32_t kMxfp8BlockCols = 32;

struct QuantiseMxfp8Params {
  const std::byte* source = nullptr;  // [rows, cols], any alignment
  Dtype source_dtype = Dtype::kBf16;  // kF32, kF16 or kBf16
  int64_t rows = 0;                   // >= 0; 0 is a no-op
  int64_t cols = 0;                   // multiple of 32
  uint8_t* elements = nullptr;        // [rows, cols] E4M3
  uint8_t* scales = nullptr;          // [rows, cols / 32] E8M0
};

// Throws std::invalid_argument on bad shapes, dtypes or null pointers.
void check_quantise_mxfp8(const QuantiseMxfp8Params& params);

// Empty = all finite. Otherwise the flat index of the first NaN or Inf of the source; its block
// is written with scale byte 255 (NaN) and the others as usual.
[[nodiscard]] std::optional<int64_t> quantise_mxfp8_cpu(const QuantiseMxfp8Params& params);

// The same on the device, bit for bit; pointers are device memory, source 16-byte aligned, elements 8.
// *first_non_finite (device, may be null) becomes the least of its value and the flat index of the
// first NaN or Inf: start it at INT64_MAX. Errors: std::invalid_argument, CudaError.
void quantise_mxfp8(const QuantiseMxfp8Params& params, int64_t* first_non_finite,
                    cudaStream_t stream);

}  // namespace warproll
