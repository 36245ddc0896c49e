// The arithmetic of sample.cu that decides which token is drawn: keys, bins and integer masses. Also
// plain C++, with the same bits on the host: every operation is an IEEE one, fma where it says fma.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define WARPROLL_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define WARPROLL_HOST_DEVICE inline
#endif

namespace warproll::step {

using Mass = unsigned __int128;  // of tokens, in units of 2^-90

inline constexpr int kIdBits = 18;
inline constexpr int kBins = 1024;
inline constexpr int kMassBits = 44;
inline constexpr int kMaxOctaves = 46;  // of 32 nats
inline constexpr float kBinnedNats = 32.0f;
inline constexpr double kLog2E = 1.4426950408889634074;

// Ascending logits in ascending unsigned integers; -0 is 0.
WARPROLL_HOST_DEVICE uint32_t ascending_of(float logit) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
WARPROLL_HOST_DEVICE float logit_of_ascending(uint32_t ascending) {
  return std::bit_cast<float>((ascending & 0x80000000u) != 0 ? ascending & 0x7fffffffu
                                                             : ~ascending);
}

// The order of kernels/sampling.h is ascending keys.
WARPROLL_HOST_DEVICE uint64_t key_of(float logit, int32_t token_id) {
  return static_cast<uint64_t>(~ascending_of(logit)) << kIdBits | static_cast<uint32_t>(token_id);
}
WARPROLL_HOST_DEVICE int32_t token_of_key(uint64_t key) {
  return static_cast<int32_t>(key & ((1u << kIdBits) - 1));
}
WARPROLL_HOST_DEVICE float logit_of_key(uint64_t key) {
  return logit_of_ascending(~static_cast<uint32_t>(key >> kIdBits));
}

// In units of 1 = the most likely token; monotone.
WARPROLL_HOST_DEVICE double to_double(Mass mass) {
  const auto high = static_cast<double>(static_cast<uint64_t>(mass >> 64));
  const auto low = static_cast<double>(static_cast<uint64_t>(mass));
  return fma(high, 0x1.0p-26, low * 0x1.0p-90);
}

// 2^r for |r| <= 0.5, relative error 2e-14; 2^0 is 1. Interpolated at Chebyshev's points.
#define WARPROLL_EXP2_TERMS                                                                      \
  {                                                                                              \
    0x1.b63880a30e9ffp-24, 0x1.63d136366db24p-20, 0x1.ffcb9515a8016p-17, 0x1.4308ac85aa947p-13,  \
        0x1.5d87fe86fe88ep-10, 0x1.3b2ab7181b755p-7, 0x1.c6b08d7047e52p-5, 0x1.ebfbdff823cedp-3, \
        0x1.62e42fefa39efp-1                                                                     \
  }
inline constexpr int kExp2Terms = 9;
inline constexpr double kExp2[kExp2Terms] = WARPROLL_EXP2_TERMS;
#ifdef __CUDACC__
// In constant memory a term is an operand; as a literal it takes two instructions to bring.
static __constant__ double exp2_terms[kExp2Terms] = WARPROLL_EXP2_TERMS;
#endif
WARPROLL_HOST_DEVICE double exp2_fraction(double r) {
#ifdef __CUDA_ARCH__
  const double* terms = exp2_terms;
#else
  const double* terms = kExp2;
#endif
  double p = terms[0];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int i = 1; i < kExp2Terms; ++i) p = fma(p, r, terms[i]);
  return fma(p, r, 1.0);
}

// One row at one temperature > 0. A bin is a range of logits, bin 0 around the largest, each as wide
// as the others but for the last, which holds the rest. A token's weight is an integer in the unit of
// its bin: 2^-(44 + octaves), where octaves is how far 2^-octaves is below 1.
struct RowScale {
  float max_logit;
  float bins_per_logit;
  float octaves_per_bin;
  double octaves_per_logit;
  double deepest;  // distances from the largest logit from which on a weight rounds to 0

  RowScale() = default;
  WARPROLL_HOST_DEVICE RowScale(float largest, float smallest, float temperature)
      : max_logit(largest) {
    constexpr float kHuge = 3.402823466e38f;
    constexpr float kLast = kBins - 1;
    const float span = fminf(fminf(largest - smallest, kBinnedNats * temperature), kHuge);
    bins_per_logit = span > 0.0f ? fminf(kLast / span, kHuge) : kHuge;
    octaves_per_logit = kLog2E / static_cast<double>(temperature);
    octaves_per_bin = 0.0f;
    // Where bins are as narrow as they can be in F32 they say nothing of a weight.
    if (bins_per_logit < kHuge) {
      octaves_per_bin =
          static_cast<float>(static_cast<double>(span) * octaves_per_logit * (1.0 / kLast));
    }
    deepest = -100.0 / octaves_per_logit;
  }

  // Rounds to the nearest, ties to even, at the bit that is worth 1 beside 2^23. Monotone in the
  // logit; -inf is in the last bin.
  [[nodiscard]] WARPROLL_HOST_DEVICE int bin(float logit) const {
    const float at = fminf((max_logit - logit) * bins_per_logit, static_cast<float>(kBins - 1));
    return static_cast<int>(std::bit_cast<uint32_t>(at + 0x1.0p23f) & 0xffffu);
  }
  // Of a bin's unit. 0 .. 46.
  [[nodiscard]] WARPROLL_HOST_DEVICE int octaves(int bin) const {
    const float index = std::bit_cast<float>(0x4b000000u | static_cast<uint32_t>(bin)) - 0x1.0p23f;
    const float below = fmaf(index, octaves_per_bin, 0x1.0p23f);
    return static_cast<int>(std::bit_cast<uint32_t>(below) & 0xffu);
  }
  // In the unit of its bin, less than 2^45.
  [[nodiscard]] WARPROLL_HOST_DEVICE uint64_t weight(float logit, int octaves) const {
    constexpr double kRound = 0x1.8p52;
    const double below = static_cast<double>(logit) - static_cast<double>(max_logit);
    if (!(below > deepest)) return 0;
    const double shifted = fma(below, octaves_per_logit, kRound);
    const auto exponent = static_cast<int32_t>(std::bit_cast<uint64_t>(shifted));
    const double fraction = fma(below, octaves_per_logit, kRound - shifted);
    const auto power = static_cast<uint64_t>(1023 + kMassBits + octaves + exponent) << 52;
    const double sum = fma(std::bit_cast<double>(power), exp2_fraction(fraction), 0x1.0p52);
    return std::bit_cast<uint64_t>(sum) & 0xfffffffffffffu;
  }
  [[nodiscard]] WARPROLL_HOST_DEVICE Mass mass(uint64_t weights, int octaves) const {
    return static_cast<Mass>(weights) << (kMaxOctaves - octaves);
  }
};

// One question about the order: its first token where the answer is yes. Monotone along the order.
struct Query {
  enum class Kind : int32_t { kRank, kMassAtLeast, kMassAbove };
  Kind kind;
  uint32_t rank;  // counted from 1
  double wanted;

  // `count` tokens up to and including this one, of mass `mass`.
  [[nodiscard]] WARPROLL_HOST_DEVICE bool reached(uint32_t count, Mass mass) const {
    if (kind == Kind::kRank) return count >= rank;
    const double so_far = to_double(mass);
    return kind == Kind::kMassAtLeast ? so_far >= wanted : so_far > wanted;
  }
};

}  // namespace warproll::step
