#include "worker/node/serving_model.h"

#include <filesystem>

#include "rollout/engine/request_check.h"
#include "rollout/model/cuda/device_weights.h"
#include "rollout/tokenizer/chat_format.h"
#include "weights_sync/weight_staging.h"

namespace warproll {

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
  return [quantise_to_mxfp8, serving = std::move(serving), on_gpu](
             const CheckpointFiles& files,
             std::span<const TensorInfo> tensors) -> Result<ArenaLayout> {
    WARPROLL_TRY_ASSIGN(config, model_config_of(files));
    if (serving.has_value()) WARPROLL_TRY(check_same_shape(config, *serving));
    WARPROLL_TRY_ASSIGN(rows, make_arena_layout(config, tensors, quantise_to_mxfp8));
    if (on_gpu) return make_device_layout(config, rows);
    return rows;
  };
}

Result<WeightSetPtr> make_weight_set(const StagedWeightsPtr& staged) {
  WARPROLL_TRY_ASSIGN(config, model_config_of(staged->files));
  WARPROLL_TRY_ASSIGN(weights, bind_weights(config, staged->layout, staged->arena.data()));
  auto set = std::make_shared<WeightSet>();
  set->weight_version = staged->weight_version;
  set->weight_digest = staged->weight_digest;
  set->config = std::move(config);
  set->weights = std::move(weights);
  set->storage = staged;
  return WeightSetPtr(std::move(set));
}

Result<WeightSetPtr> load_weight_set(const std::string& directory, uint64_t weight_version,
                                     bool quantise_to_mxfp8) {
  WARPROLL_TRY_ASSIGN(checkpoint, Checkpoint::open(directory));
  WeightArenas arenas;  // the staged weights outlive it
  const Result<StagedWeightsPtr> staged = load_staged(
      checkpoint, weight_version, make_layout_function(quantise_to_mxfp8, std::nullopt), arenas);
  if (!staged.ok()) return staged.status().with_context(directory);
  return make_weight_set(*staged);
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
