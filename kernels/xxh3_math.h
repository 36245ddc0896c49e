// The pieces of XXH3 that its CPU twin and its kernel share: keys, a lane's contribution, scramble,
// merge. Names of constants as in the specification. Internal to kernels. Thread: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define WARPROLL_XXH3 __host__ __device__ inline
#else
#define WARPROLL_XXH3 inline
#endif

namespace warproll::xxh3 {

inline constexpr int kLanes = 8;  // accumulators; a stripe has 8 bytes for each
inline constexpr uint64_t kStripeBytes = 64;
inline constexpr uint64_t kBlockBytes = 1024;  // 16 stripes, then a scramble
inline constexpr int kBlockStripes = 16;

inline constexpr uint64_t kPrime32_1 = 0x9E3779B1u, kPrime32_2 = 0x85EBCA77u,
                          kPrime32_3 = 0xC2B2AE3Du;
inline constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87u, kPrime64_2 = 0xC2B2AE3D27D4EB4Fu,
                          kPrime64_3 = 0x165667B19E3779F9u, kPrime64_4 = 0x85EBCA77C2B2AE63u,
                          kPrime64_5 = 0x27D4EB2F165667C5u;

// What the default secret gives at the offsets where it is read.
struct Keys {
  uint64_t stripe[24];     // stripe n, lane i: [n + i]; the last eight also scramble
  uint64_t last[8];        // of the last stripe
  uint64_t merge[2][8];    // of the low and the high half of the hash
  uint64_t start[kLanes];  // the accumulators' first values
};
Keys make_keys();  // host

// What lane i gets from a stripe: its own value times its key, and its neighbour's value.
WARPROLL_XXH3 uint64_t contribution(uint64_t own, uint64_t neighbour, uint64_t key) {
  const uint64_t keyed = own ^ key;
  return neighbour + (keyed & 0xffffffffu) * (keyed >> 32);
}

WARPROLL_XXH3 uint64_t scramble(uint64_t accumulator, uint64_t key) {
  return (accumulator ^ accumulator >> 47 ^ key) * kPrime32_1;
}

WARPROLL_XXH3 uint64_t fold_product(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

WARPROLL_XXH3 uint64_t merge(const uint64_t* accumulators, const uint64_t* keys, uint64_t start) {
  uint64_t hash = start;
  for (int i = 0; i < kLanes; i += 2) {
    hash += fold_product(accumulators[i] ^ keys[i], accumulators[i + 1] ^ keys[i + 1]);
  }
  hash ^= hash >> 37;
  hash *= 0x165667919E3779F9u;
  return hash ^ hash >> 32;
}

// Any alignment; little-endian, as CUDA and x86-64 are.
WARPROLL_XXH3 uint64_t read64(const std::byte* p) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<uint64_t>(p[i]);
  return value;
}

// The canonical form: the high half first, each big-endian.
WARPROLL_XXH3 void write_canonical(uint64_t low, uint64_t high, std::byte* out) {
  for (int i = 0; i < 8; ++i) {
    out[i] = static_cast<std::byte>(high >> (56 - 8 * i));
    out[8 + i] = static_cast<std::byte>(low >> (56 - 8 * i));
  }
}

WARPROLL_XXH3 void write_hash(const uint64_t* accumulators, const Keys& keys, uint64_t bytes,
                              std::byte* out) {
  write_canonical(merge(accumulators, keys.merge[0], bytes * kPrime64_1),
                  merge(accumulators, keys.merge[1], ~(bytes * kPrime64_2)), out);
}

}  // namespace warproll::xxh3
