// Lanes: sixteen F32 lanes, the one unit in which the CPU twins sum. Element i of a sum goes to
// lane i mod 16 and the lanes are folded in one fixed tree, so the order of a sum depends on its
// length alone: not on the vector width of the machine, the batch or the threads.
// Internal to kernels/*.cpp. Thread: pure functions.
#pragma once

#include <cstdint>
#include <cstring>

// Everything here is inlined into its caller, so no vector crosses an ABI.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// One body compiled for several vector widths. Lane-wise F32 multiplies and adds are IEEE exact
// roundings and -ffp-contract=off forbids FMA, so every clone gives the same bits. Sanitizers run
// before the ifunc resolvers are ready, and clang 14 clones no C++; they get the plain build.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WARPROLL_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WARPROLL_VECTOR_CLONES
#endif
#define WARPROLL_INLINE inline __attribute__((always_inline))

namespace warproll {

inline constexpr int kLanes = 16;
typedef float Lanes __attribute__((vector_size(64)));
typedef float Half __attribute__((vector_size(32)));
typedef float Quad __attribute__((vector_size(16)));
typedef int32_t IntLanes __attribute__((vector_size(64)));

WARPROLL_INLINE void load_lanes(Lanes& out, const float* from) {
  std::memcpy(&out, from, sizeof(out));
}
WARPROLL_INLINE void store_lanes(float* to, const Lanes& from) {
  std::memcpy(to, &from, sizeof(from));
}
// The first `count` < 16 floats, zeros after them.
WARPROLL_INLINE void load_lanes_tail(Lanes& out, const float* from, int count) {
  float padded[kLanes] = {};
  for (int i = 0; i < count; ++i) padded[i] = from[i];
  load_lanes(out, padded);
}
WARPROLL_INLINE float fold_lanes(const Lanes& lanes) {
  float v[kLanes];
  store_lanes(v, lanes);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) v[i] += v[i + width];
  }
  return v[0];
}

// fold_lanes of four at once, bit for bit: the halves meet in vector registers.
WARPROLL_INLINE void fold_four(const Lanes* lanes, float* out) {
  Quad quad[4];
  for (int i = 0; i < 4; ++i) {
    const Lanes& v = lanes[i];
    const Half half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    quad[i] = __builtin_shufflevector(half, half, 0, 1, 2, 3) +
              __builtin_shufflevector(half, half, 4, 5, 6, 7);
  }
  // [a0 + a2, a1 + a3, b0 + b2, b1 + b3] of quads a, b; then the pairs.
  const Quad first = __builtin_shufflevector(quad[0], quad[1], 0, 1, 4, 5) +
                     __builtin_shufflevector(quad[0], quad[1], 2, 3, 6, 7);
  const Quad second = __builtin_shufflevector(quad[2], quad[3], 0, 1, 4, 5) +
                      __builtin_shufflevector(quad[2], quad[3], 2, 3, 6, 7);
  const Quad sums = __builtin_shufflevector(first, second, 0, 2, 4, 6) +
                    __builtin_shufflevector(first, second, 1, 3, 5, 7);
  std::memcpy(out, &sums, sizeof(sums));
}

WARPROLL_INLINE void splat(Lanes& out, float value) {
  for (int i = 0; i < kLanes; ++i) out[i] = value;
}

// sum of a[i] * b[i].
WARPROLL_INLINE float dot_lanes(const float* a, const float* b, int32_t size) {
  Lanes sum = {}, x, y;
  int32_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    load_lanes(x, a + i);
    load_lanes(y, b + i);
    sum += x * y;
  }
  if (i < size) {
    load_lanes_tail(x, a + i, size - i);
    load_lanes_tail(y, b + i, size - i);
    sum += x * y;
  }
  return fold_lanes(sum);
}

// out[j] = sum of a[i] * b[j][i] for four rows b: dot_lanes of each, bit for bit.
WARPROLL_INLINE void dot_four(const float* a, const float* const* b, int32_t size, float* out) {
  Lanes sum[4] = {}, x, y;
  int32_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    load_lanes(x, a + i);
    for (int j = 0; j < 4; ++j) {
      load_lanes(y, b[j] + i);
      sum[j] += x * y;
    }
  }
  if (i < size) {
    load_lanes_tail(x, a + i, size - i);
    for (int j = 0; j < 4; ++j) {
      load_lanes_tail(y, b[j] + i, size - i);
      sum[j] += x * y;
    }
  }
  fold_four(sum, out);
}

// x becomes e^x, within 1 ulp, the same bits everywhere (libm's exp differs between machines with
// and without FMA). Below -87.3 it is 0 and above 88.7 inf; NaN stays NaN.
// Method: Cody & Waite 1980, n = round(x / ln 2), e^r by its Taylor series to r^7 on |r| <= 0.347.
WARPROLL_INLINE void exp_lanes(Lanes& x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  Lanes lowest, highest, infinity;
  splat(lowest, -87.3f);
  splat(highest, 88.7f);
  splat(infinity, __builtin_inff());
  const Lanes at_least = x < lowest ? lowest : x;
  const Lanes v = at_least > highest ? highest : at_least;
  const Lanes shifted = v * 1.44269504f + kRound;
  const Lanes n = shifted - kRound;
  const Lanes r = (v - n * 0.693359375f) + n * 2.12194440e-4f;
  Lanes p = r * (1.0f / 5040.0f) + (1.0f / 720.0f);
  p = p * r + (1.0f / 120.0f);
  p = p * r + (1.0f / 24.0f);
  p = p * r + (1.0f / 6.0f);
  p = p * r + 0.5f;
  p = (p * r) * r + r + 1.0f;
  // 2^n in two factors, because n may be 128.
  IntLanes exponent;
  std::memcpy(&exponent, &shifted, sizeof(exponent));
  exponent = (exponent - 0x4b400000) & 0x1ff;
  exponent = (exponent ^ 0x100) - 0x100;  // sign of a 9-bit number
  const IntLanes half = exponent >> 1;
  const IntLanes first_bits = (half + 127) << 23;
  const IntLanes second_bits = (exponent - half + 127) << 23;
  Lanes first, second;
  std::memcpy(&first, &first_bits, sizeof(first));
  std::memcpy(&second, &second_bits, sizeof(second));
  const Lanes result = p * first * second;
  const Lanes zero = {};
  const Lanes high = x > highest ? infinity : result;
  x = x < lowest ? zero : high;
}

}  // namespace warproll
