// The inner loops over weights that linear, moe and embedding share: dequantise a piece of a row,
// and dot a few rows with many activations, each weight row read once.
// Internal to kernels/*.cpp. Thread: pure functions.
#pragma once

#include <cstdint>

#include "kernels/weight.h"

namespace warproll {

inline constexpr int kRowTile = 4;     // weight rows a call of dot_rows takes at most
inline constexpr int kTokenTile = 32;  // activations a call takes at most

// out[0 .. count) = row `row`, columns from `begin`, of matrix 0.
void dequantise_row(const WeightView& weight, int32_t row, int32_t begin, int32_t count,
                    float* out);

// y[i][r] = sum over c of W[row_begin + r, c] * x[i][c], for row_count <= kRowTile rows and
// num_x <= kTokenTile activations of W.cols floats. Element c goes to lane c mod 16, lanes are
// folded in a fixed tree: y[i][r] has the same bits whatever else is in the call.
void dot_rows(const WeightView& weight, int32_t row_begin, int32_t row_count, const float* const* x,
              int32_t num_x, float* const* y);

}  // namespace warproll
