// Philox4x32-10, the counter-based random generator behind every sampled token.
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
// Pure functions, no state, the same words on every machine. Thread: pure functions.
//
// The random stream of a sample has the logical key (task seed u64, sample_index u32) and the
// logical counter = absolute position of the token being sampled (prompt_len for the first one).
// These 128 bits are laid out so that no two of them collide, without any hashing:
//   key     word 0 = low 32 bits of seed        key     word 1 = high 32 bits of seed
//   counter word 0 = position                   counter word 1 = 0
//   counter word 2 = sample_index               counter word 3 = 0
// One token uses one uniform: with output words x0, x1, x2, x3,
//   u = floor((x1 * 2^32 + x0) / 2^11) * 2^-53      in [0, 1), exact in double.
#pragma once

#include <array>
#include <cstdint>

namespace warproll {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key) {
  constexpr int kRounds = 10;
  constexpr uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u;
  constexpr uint32_t kWeyl1 = 0xBB67AE85u;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// The uniform in [0, 1) that decides the token at absolute `position`.
constexpr double sampling_uniform(uint64_t seed, uint32_t sample_index, uint32_t position) {
  const PhiloxCounter words =
      philox4x32_10({position, 0, sample_index, 0},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (static_cast<uint64_t>(words[1]) << 32) | words[0];
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace warproll
