// The tensors that a checkpoint of a config would have, for models made without files: random weights
// for benches and smoke tests. Thread: pure function.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/arena.h"
#include "rollout/model/model_config.h"

namespace warproll {

enum class SyntheticFormat : uint8_t {
  kBf16,          // everything
  kMxfp8Experts,  // experts' matrices E4M3 with U8 "_scale_inv" (SGLang dialect), the rest BF16
};
std::optional<SyntheticFormat> synthetic_format_from(
    std::string_view word);  // "bf16", "mxfp8_experts"

// Names and shapes as Qwen3-MoE has them, one tensor for each matrix of an expert.
// make_arena_layout takes them. A dense MLP has the format of the experts.
std::vector<TensorInfo> synthetic_tensors(const ModelConfig& config, SyntheticFormat format);

}  // namespace warproll
