// What the GPU tests of the linear ops share. Thread: one test. Errors: CudaError.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu_support.h"
#include "kernels/moe/tiles.h"

namespace warproll::testing {

// Tiles of one matrix, dequantised on the host: [rows, cols].
std::vector<double> values_of(const TileMatrix& m);

// BF16 [tokens, cols].
std::vector<uint16_t> random_x(int32_t tokens, int32_t cols, uint64_t seed, float sigma = 1.0f);

// y [tokens, rows] is x w^T within 2e-6 * sum |w x|, for some of the tokens and rows.
void expect_near_f64(const std::vector<double>& w, const std::vector<uint16_t>& x, int32_t rows,
                     int32_t cols, const std::vector<float>& y);

}  // namespace warproll::testing
