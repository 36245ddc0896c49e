// dequantise_cpu: weight rows of any format as F32: element, or element * scale rounded once to
// F32 (exact for MXFP8 short of F32's range). The spec of what a weight's value is, for every op.
// Thread: pure function.
#pragma once

#include <cstdint>

#include "kernels/weight.h"

namespace warproll {

// out [row_count, col_count] = rows and columns from (row_begin, col_begin) of weight's matrix 0.
// Throws std::invalid_argument when the range is outside [rows, cols] or the view is malformed.
void dequantise_cpu(const WeightView& weight, int32_t row_begin, int32_t row_count,
                    int32_t col_begin, int32_t col_count, float* out);

// Throws std::invalid_argument, naming `what`, unless the view is well formed: pointers present,
// shape not negative, scales of a dtype and blocks of a size that the format has.
void check_weight_view(const WeightView& weight, const char* what);

}  // namespace warproll
