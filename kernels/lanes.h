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
