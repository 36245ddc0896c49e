// Prompts of random ids, all different, so that routing is as free as it is in use.
// Thread: pure function.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace warproll {

inline std::shared_ptr<const std::vector<int32_t>> random_prompt(int32_t sequence, int32_t length,
                                                                 int32_t vocab_size) {
  std::vector<int32_t> ids;
  uint64_t state = static_cast<uint64_t>(sequence) * 2654435761u + 1;
  for (int32_t i = 0; i < length; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;  // Knuth's MMIX generator
    ids.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab_size)));
  }
  return std::make_shared<const std::vector<int32_t>>(std::move(ids));
}

}  // namespace warproll
