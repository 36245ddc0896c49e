#include "weights_sync/checkpoint_writer.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

namespace warproll {

namespace fs = std::filesystem;

namespace {

// tensors[i] goes to shard result[i]; names in order, so that layers stay together.
std::vector<size_t> assign_shards(const std::vector<TensorInfo>& tensors, uint64_t max_bytes,
                                  size_t& num_shards) {
  std::vector<size_t> order(tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return tensors[a].name < tensors[b].name; });
  std::vector<size_t> shards(tensors.size());
  size_t shard = 0;
  uint64_t filled = 0;
  for (const size_t i : order) {
    if (max_bytes > 0 && filled > 0 && filled + tensors[i].bytes > max_bytes) {
      ++shard;
      filled = 0;
    }
    shards[i] = shard;
    filled += tensors[i].bytes;
  }
  num_shards = shard + 1;
  return shards;
}

Status write_files(const fs::path& root, const CheckpointFiles& files) {
  const std::pair<const char*, const std::string&> named[] = {
      {"config.json", files.config_json},
      {"generation_config.json", files.generation_config_json},
      {"hf_quant_config.json", files.hf_quant_config_json}};
  for (const auto& [name, text] : named) {
    if (!text.empty()) WARPROLL_TRY(write_text_file((root / name).string(), text));
  }
  return ok_status();
}

}  // namespace

std::string shard_file_name(size_t shard_index, size_t of_shards) {
  if (of_shards <= 1) return "model.safetensors";
  const auto five_digits = [](size_t number) {
    const std::string digits = std::to_string(number);
    return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
  };
  return "model-" + five_digits(shard_index + 1) + "-of-" + five_digits(of_shards) + ".safetensors";
}

std::string make_index_json(std::span<const TensorInfo> tensors,
                            std::span<const std::string> shards) {
  std::map<std::string, std::string> weight_map;
  uint64_t total_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    weight_map.emplace(tensors[i].name, shards[i]);
    total_bytes += tensors[i].bytes;
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total_bytes}}},
                                        {"weight_map", weight_map}};
  return index.dump(2) + "\n";
}

Status write_checkpoint(const std::string& directory, const CheckpointToWrite& checkpoint,
                        const ByteProgress& progress) {
  const std::vector<TensorInfo>& tensors = checkpoint.tensors;
  size_t num_shards = 0;
  const std::vector<size_t> shards = assign_shards(tensors, checkpoint.max_shard_bytes, num_shards);
  WARPROLL_TRY_ASSIGN(staged, StagedDirectory::create(directory));
  const fs::path root(staged.path());

  uint64_t total_bytes = 0;
  for (const TensorInfo& tensor : tensors) total_bytes += tensor.bytes;
  uint64_t done_bytes = 0;
  for (size_t shard = 0; shard < num_shards; ++shard) {
    std::vector<TensorInfo> own;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (shards[i] == shard) own.push_back(tensors[i]);
    }
    const std::string path = (root / shard_file_name(shard, num_shards)).string();
    WARPROLL_TRY_ASSIGN(writer, SafetensorsWriter::create(path, std::move(own)));
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (shards[i] != shard) continue;
      WARPROLL_TRY(writer.write(tensors[i].name, checkpoint.bytes(i)));
      done_bytes += tensors[i].bytes;
      if (progress) progress(done_bytes, total_bytes);
    }
    WARPROLL_TRY(writer.finish());
  }
  if (num_shards > 1) {
    std::vector<std::string> names;
    for (const size_t shard : shards) names.push_back(shard_file_name(shard, num_shards));
    WARPROLL_TRY(write_text_file((root / "model.safetensors.index.json").string(),
                                 make_index_json(tensors, names)));
  }
  WARPROLL_TRY(write_files(root, checkpoint.files));
  return staged.commit();
}

}  // namespace warproll
