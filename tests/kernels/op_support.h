// Random inputs, weights of every format and F64 references for the tests of the ops.
// Thread: one test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/parallel.h"
#include "kernels/weight.h"

namespace warproll::testing {

std::vector<float> random_floats(int64_t count, std::mt19937& rng, float deviation = 1.0f);

// A weight that owns its bytes, and its values in F64, dequantised here independently of kernels/.
struct TestWeight {
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  std::vector<double> values;  // [num_matrices, rows, cols]
  WeightView view;
};
enum class TestFormat { kF32, kF16, kBf16, kMxfp8, kFp8BlockF32, kFp8BlockBf16 };
inline constexpr TestFormat kAllFormats[] = {TestFormat::kF32,         TestFormat::kF16,
                                             TestFormat::kBf16,        TestFormat::kMxfp8,
                                             TestFormat::kFp8BlockF32, TestFormat::kFp8BlockBf16};
const char* name_of(TestFormat format);
// MXFP8 wants cols in multiples of 32. Blocks of kFp8Block are 5 x 24, so ragged nearly always.
TestWeight random_weight(TestFormat format, int32_t num_matrices, int32_t rows, int32_t cols,
                         std::mt19937& rng);

// NaN-filled, so that an element an op forgets is seen.
std::vector<float> poisoned(int64_t count);

// Runs `body` with 1, 2 and 5 OpenMP threads.
template <typename Body>
void with_thread_counts(const Body& body) {
  const int before = kernel_threads();
  for (const int threads : {1, 2, 5}) {
    set_kernel_threads(threads);
    body();
  }
  set_kernel_threads(before);
}

}  // namespace warproll::testing
