// Where weights_sync and rollout/model meet: checkpoint files -> arena layout -> filled arena ->
// WeightSet the engine runs, and the tokenizer that goes with it.
// Thread: pure functions. Errors name the file, key or tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/status.h"
#include "rollout/collector/prompt_encoder.h"
#include "rollout/model/forward.h"
#include "rollout/model/weights.h"
#include "rollout/tokenizer/tokenizer.h"
#include "weights_sync/checkpoint.h"
#include "weights_sync/weight_arenas.h"
#include "worker/node/model_device.h"

namespace warproll {

Result<ModelConfig> model_config_of(const CheckpointFiles& files);
Result<ActivationDtype> activation_dtype_from(const std::string& text);  // "f32" | "bf16" | "f16"

// For UpdateReceiver and load_staged. `serving` empty = any model; otherwise another shape than
// that is refused before a byte moves. on_gpu: of an arena in device memory.
LayoutFunction make_layout_function(bool quantise_to_mxfp8, std::optional<ModelConfig> serving,
                                    bool on_gpu = false);

// The views the engine reads; keeps `staged` alive. On a GPU they are of serving_memory().
Result<WeightSetPtr> make_weight_set(const StagedWeightsPtr& staged, const ModelDevice& device);

// A checkpoint directory as a WeightSet, for the commands that run a model without a trainer.
Result<WeightSetPtr> load_weight_set(const std::string& directory, uint64_t weight_version,
                                     bool quantise_to_mxfp8, const ModelDevice& device);

// Weights without files: drawn on the GPU, N(0, 0.02), for measuring.
struct RandomModel {
  std::string config_path;                // a config.json
  std::string weights = "mxfp8_experts";  // or "bf16"; the rest is BF16 either way
  uint64_t seed = 1;
  int32_t layers = 0;  // of the model, instead of the config's; 0 = as many as it says
};
// What a checkpoint of it would list.
struct RandomCheckpoint {
  CheckpointFiles files;
  ModelConfig config;
  std::vector<TensorInfo> tensors;
};
Result<RandomCheckpoint> describe_random_model(const RandomModel& random);
Result<StagedWeightsPtr> load_random_model(const RandomModel& random, uint64_t weight_version,
                                           const LayoutFunction& layout, WeightArenas& arenas);
Result<WeightSetPtr> load_random_weight_set(const RandomModel& random, const ModelDevice& device);

// Tokenizer and chat format of a checkpoint. tokenizer null: there is no tokenizer.json; token ids
// still work. A tokenizer.json that cannot be used is an error.
struct TextParts {
  std::shared_ptr<const Tokenizer> tokenizer;
  PromptEncoder encoder;
  std::string note;  // what does not work, for the log; empty = everything does
};
// tokenizer_path empty: beside the checkpoint.
Result<TextParts> load_text_parts(const std::string& checkpoint_directory,
                                  const std::string& tokenizer_path);

}  // namespace warproll
