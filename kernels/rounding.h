// Rounding of activations. The CPU twins keep every activation in a float; in a 16-bit mode an op
// rounds its finished output to the values a GPU would store, and sums stay F32 inside.
// Thread: pure functions.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace warproll {

// Throws std::invalid_argument, naming the op `what`, unless dtype is kF32, kBf16 or kF16.
void check_activation_dtype(Dtype dtype, const char* what);

// `values` [count] to the nearest BF16 or F16 value, ties to even; any other dtype leaves them (an
// op checks its dtype first). F16: beyond 65504 becomes inf, as a GPU's conversion does.
void round_activations(float* values, int64_t count, Dtype dtype);

}  // namespace warproll
