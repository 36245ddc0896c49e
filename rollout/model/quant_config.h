// What config.json's quantization_config and hf_quant_config.json say of the weights' format. The
// dtypes decide per tensor; this gives block FP8 its block size and refuses formats by name.
// Internal to rollout/model/*.cpp. Thread: pure function.
#pragma once

#include "protocol/status.h"
#include "rollout/model/config_fields.h"
#include "rollout/model/model_config.h"

namespace warproll {

// Sets quant, block_rows and block_cols. `hf_quant_config` null = no such file.
Status parse_quant_config(ConfigFields& config, ConfigFields* hf_quant_config, ModelConfig& out);

}  // namespace warproll
