// What a decode step must read: the weights of the experts that its tokens are routed to, all other
// matrices, and the KV cache. The floor of `warproll bench decode`. Thread: pure functions.
#pragma once

#include <cstdint>

#include "rollout/model/weights.h"

namespace warproll {

inline constexpr double kReadCeilingBytesPerS =
    4.66e12;  // measured on an H200, docs/benchmarks/moe.md

struct DecodeBytes {
  double expert = 0;        // one routed expert of one layer, the mean over MoE layers
  double rest = 0;          // everything else of a step, the embedding's few rows not counted
  double kv_per_token = 0;  // K and V of one token of context, all layers
  int32_t num_moe_layers = 0;
};
// Of weights on a GPU, as a checkpoint stores them (tiles carry a little more).
DecodeBytes decode_bytes(const WeightSet& weights);

// distinct_experts: a layer's, the mean over layers and steps.
double floor_seconds(const DecodeBytes& bytes, double distinct_experts);
double floor_seconds_with_kv(const DecodeBytes& bytes, double distinct_experts,
                             double context_tokens);

}  // namespace warproll
