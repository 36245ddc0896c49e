// ExpertShape: the sizes of one MoE layer; Qwen3-30B-A3B's unless told otherwise. Plain values.
#pragma once

#include <cstdint>

namespace warproll {

struct ExpertShape {
  int32_t hidden_size = 2048;       // H
  int32_t intermediate_size = 768;  // I
  int32_t num_experts = 128;        // E
  int32_t top_k = 8;                // K
};

}  // namespace warproll
