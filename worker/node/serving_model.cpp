#include "worker/node/serving_model.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "rollout/engine/request_check.h"
#include "rollout/model/cuda/device_weights.h"
#include "rollout/model/synthetic_tensors.h"
#include "rollout/tokenizer/chat_format.h"
#include "weights_sync/weight_staging.h"
#ifdef WARPROLL_HAS_CUDA
#include "weights_sync/cuda/random_weights.h"
#endif

namespace warproll {
namespace {

// The config with another number of layers. What is no JSON object is left to its parser to refuse.
std::string with_layers(const std::string& config_json, int32_t layers) {
  auto config = nlohmann::ordered_json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return config_json;
  config["num_hidden_layers"] = layers;
  if (const auto dense = config.find("mlp_only_layers");
      dense != config.end() && dense->is_array()) {
    nlohmann::ordered_json kept = nlohmann::ordered_json::array();
    for (const auto& layer : *dense) {
      if (layer.is_number_integer() && layer.get<int64_t>() < layers) kept.push_back(layer);
    }
    *dense = std::move(kept);
  }
  return config.dump(2);
}

}  // namespace

Result<ModelConfig> model_config_of(const CheckpointFiles& files) {
  return parse_model_config(files.config_json, files.generation_config_json,
                            files.hf_quant_config_json);
}

Result<ActivationDtype> activation_dtype_from(const std::string& text) {
  for (const ActivationDtype dtype :
       {ActivationDtype::kF32, ActivationDtype::kBf16, ActivationDtype::kF16}) {
    if (text == to_string(dtype)) return dtype;
  }
  return invalid_argument("activation dtype '" + text + "', wanted f32, bf16 or f16");
}

LayoutFunction make_layout_function(bool quantise_to_mxfp8, std::optional<ModelConfig> serving,
                                    bool on_gpu) {
  return [quantise_to_mxfp8, on_gpu, serving = std::move(serving)](
             const CheckpointFiles& files,
             std::span<const TensorInfo> tensors) -> Result<ArenaLayout> {
    WARPROLL_TRY_ASSIGN(config, model_config_of(files));
    if (serving.has_value()) WARPROLL_TRY(check_same_shape(config, *serving));
    WARPROLL_TRY_ASSIGN(rows, make_arena_layout(config, tensors, quantise_to_mxfp8));
    if (!on_gpu) return rows;
    return make_device_layout(config, rows);
  };
}

Result<WeightSetPtr> make_weight_set(const StagedWeightsPtr& staged, const ModelDevice& device) {
  WARPROLL_TRY_ASSIGN(config, model_config_of(staged->files));
  auto set = std::make_shared<WeightSet>();
  if (staged->layout.tile_regions.empty()) {
    WARPROLL_TRY_ASSIGN(weights, bind_weights(config, staged->layout, staged->arena.data()));
    set->weights = std::move(weights);
  } else {
    WARPROLL_TRY_ASSIGN(
        weights, bind_device_weights(config, staged->layout, serving_memory(device, *staged)));
    set->device = std::make_shared<const DeviceModelWeights>(std::move(weights));
  }
  set->weight_version = staged->weight_version;
  set->weight_digest = staged->weight_digest;
  set->config = std::move(config);
  set->storage = staged;
  return WeightSetPtr(std::move(set));
}

Result<WeightSetPtr> load_weight_set(const std::string& directory, uint64_t weight_version,
                                     bool quantise_to_mxfp8, const ModelDevice& device) {
  WARPROLL_TRY_ASSIGN(checkpoint, Checkpoint::open(directory));
  WeightArenas arenas(0, device.arenas);  // the staged weights outlive it
  const Result<StagedWeightsPtr> staged =
      load_staged(checkpoint, weight_version,
                  make_layout_function(quantise_to_mxfp8, std::nullopt, device.on_gpu()), arenas);
  if (!staged.ok()) return staged.status().with_context(directory);
  return make_weight_set(*staged, device);
}

Result<RandomCheckpoint> describe_random_model(const RandomModel& random) {
  const std::optional<SyntheticFormat> format = synthetic_format_from(random.weights);
  if (!format.has_value()) {
    return invalid_argument("random weights '" + random.weights +
                            "', wanted mxfp8_experts or bf16");
  }
  std::ifstream file(random.config_path);
  if (!file) return not_found(random.config_path + ": cannot be opened for reading");
  std::ostringstream text;
  text << file.rdbuf();
  RandomCheckpoint checkpoint;
  checkpoint.files.config_json =
      random.layers > 0 ? with_layers(text.str(), random.layers) : text.str();
  const Result<ModelConfig> config = model_config_of(checkpoint.files);
  if (!config.ok()) return config.status().with_context(random.config_path);
  checkpoint.tensors = synthetic_tensors(*config, *format);
  checkpoint.config = *config;
  return checkpoint;
}

#ifdef WARPROLL_HAS_CUDA
Result<StagedWeightsPtr> load_random_model(const RandomModel& random, uint64_t weight_version,
                                           const LayoutFunction& layout, WeightArenas& arenas) {
  WARPROLL_TRY_ASSIGN(checkpoint, describe_random_model(random));
  return load_random({checkpoint.files, checkpoint.tensors, random.seed}, weight_version, layout,
                     arenas);
}
#else
Result<StagedWeightsPtr> load_random_model(const RandomModel&, uint64_t, const LayoutFunction&,
                                           WeightArenas&) {
  return failed_precondition("random weights are drawn on a GPU, and this build has no CUDA");
}
#endif

Result<WeightSetPtr> load_random_weight_set(const RandomModel& random, const ModelDevice& device) {
  if (!device.on_gpu()) {
    return failed_precondition("random weights are drawn on a GPU, and the model runs on a " +
                               device.description);
  }
  WeightArenas arenas(0, device.arenas);  // the staged weights outlive it
  WARPROLL_TRY_ASSIGN(
      staged,
      load_random_model(random, 1, make_layout_function(false, std::nullopt, true), arenas));
  return make_weight_set(staged, device);
}

Result<TextParts> load_text_parts(const std::string& checkpoint_directory,
                                  const std::string& tokenizer_path) {
  TextParts parts;
  const std::string path =
      tokenizer_path.empty() ? checkpoint_directory + "/tokenizer.json" : tokenizer_path;
  if (tokenizer_path.empty() && !std::filesystem::exists(path)) {
    parts.note = path + " is not there: tasks need prompt_ids, and no text is decoded";
    return parts;
  }
  WARPROLL_TRY_ASSIGN(tokenizer, Tokenizer::from_file(path));
  parts.tokenizer = tokenizer;
  Result<ChatFormat> chat = ChatFormat::from_checkpoint(tokenizer, checkpoint_directory);
  if (chat.ok()) {
    parts.encoder = PromptEncoder(tokenizer, std::move(chat).value());
  } else {
    parts.encoder = PromptEncoder(tokenizer, std::nullopt, chat.status().message());
    parts.note = "no chat: " + chat.status().message();
  }
  return parts;
}

}  // namespace warproll
