#include "weights_sync/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <utility>

#include "protocol/strict_json.h"
#include "weights_sync/safetensors.h"
#include "weights_sync/tensor_check.h"

namespace warproll {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::json;

constexpr char kSingleName[] = "model.safetensors";
constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr uint64_t kMaxTextBytes = uint64_t{16} << 20;
constexpr uint64_t kMaxIndexBytes = uint64_t{256} << 20;
constexpr JsonLimits kIndexLimits{.max_depth = 8, .max_values = 8 << 20};

// An absent file is an empty text.
Status read_text(const fs::path& path, uint64_t max_bytes, std::string& text) {
  std::error_code error;
  if (!fs::exists(path, error)) return ok_status();
  const uint64_t size = fs::file_size(path, error);
  if (error) return invalid_argument(path.string() + ": cannot read: " + error.message());
  if (size > max_bytes) {
    return invalid_argument(path.string() + ": has " + std::to_string(size) +
                            " bytes, wanted at most " + std::to_string(max_bytes));
  }
  std::ifstream stream(path, std::ios::binary);
  text.resize(size);
  stream.read(text.data(), static_cast<std::streamsize>(size));
  if (!stream || static_cast<uint64_t>(stream.gcount()) != size) {
    return unavailable(path.string() + ": cannot read its " + std::to_string(size) + " bytes");
  }
  return ok_status();
}

using WeightMap = std::map<std::string, std::string>;  // tensor -> shard file

Result<WeightMap> parse_index(const std::string& text, const std::string& path) {
  WARPROLL_TRY(check_json(text, path, kIndexLimits));
  const Json index = Json::parse(text);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return invalid_argument(path +
                            ": has no object weight_map, wanted {\"weight_map\": {tensor: file}}");
  }
  WeightMap map;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const std::string shard = file.is_string() ? file.get<std::string>() : std::string();
    // A plain name: an index must not lead out of its directory.
    if (shard.empty() || shard == "." || shard == ".." ||
        shard.find_first_of(std::string("/\\\0", 3)) != std::string::npos) {
      return invalid_argument(path + ": tensor '" + printable(name) + "' is in file " +
                              printable(file.dump()) + ", wanted a plain file name");
    }
    map.emplace(name, shard);
  }
  if (map.empty()) return invalid_argument(path + ": weight_map is empty, wanted tensors");
  return map;
}

}  // namespace

struct Checkpoint::Impl {
  struct Place {
    size_t shard = 0;
    size_t tensor = 0;  // in that shard
  };
  std::string directory;
  CheckpointFiles files;
  std::vector<SafetensorsFile> shards;
  std::vector<std::string> shard_names;
  std::vector<TensorInfo> tensors;
  std::vector<Place> places;

  Status open_files();
  Status open_shards(const WeightMap* index);
  Status open_weights();
  Status collect(const WeightMap* index);
  void sort_by_name();
};

Status Checkpoint::Impl::open_files() {
  const fs::path root(directory);
  WARPROLL_TRY(read_text(root / "config.json", kMaxTextBytes, files.config_json));
  WARPROLL_TRY(
      read_text(root / "generation_config.json", kMaxTextBytes, files.generation_config_json));
  return read_text(root / "hf_quant_config.json", kMaxTextBytes, files.hf_quant_config_json);
}

Status Checkpoint::Impl::open_weights() {
  const fs::path root(directory);
  std::error_code error;
  if (!fs::is_directory(root, error)) {
    return not_found(directory + ": is not a directory, wanted a checkpoint directory");
  }
  const bool has_single = fs::exists(root / kSingleName, error);
  const bool has_index = fs::exists(root / kIndexName, error);
  if (!has_index) {
    if (has_single) return open_shards(nullptr);
    return not_found(directory + ": has neither " + kSingleName + " nor " + kIndexName +
                     ", wanted one of them");
  }
  std::string text;
  const std::string path = (root / kIndexName).string();
  WARPROLL_TRY(read_text(path, kMaxIndexBytes, text));
  WARPROLL_TRY_ASSIGN(index, parse_index(text, path));
  const bool names_single = std::any_of(
      index.begin(), index.end(), [](const auto& entry) { return entry.second == kSingleName; });
  if (has_single && !names_single) {
    return invalid_argument(directory + ": has " + kSingleName + " and an " + kIndexName +
                            " that does not name it, wanted one checkpoint");
  }
  return open_shards(&index);
}

Status Checkpoint::Impl::open_shards(const WeightMap* index) {
  std::set<std::string> names;
  if (index == nullptr) names.insert(kSingleName);
  if (index != nullptr) {
    for (const auto& [tensor, shard] : *index) names.insert(shard);
  }
  for (const std::string& name : names) {
    Result<SafetensorsFile> shard = SafetensorsFile::open((fs::path(directory) / name).string());
    if (!shard.ok() && shard.status().code() == StatusCode::kNotFound) {
      return shard.status().with_context(directory + ": shard named by the index is missing");
    }
    if (!shard.ok()) return shard.status();
    shards.push_back(std::move(shard).value());
    shard_names.push_back(name);
  }
  WARPROLL_TRY(collect(index));
  sort_by_name();
  return ok_status();
}

Status Checkpoint::Impl::collect(const WeightMap* index) {
  std::unordered_map<std::string_view, size_t> shard_of;
  for (size_t s = 0; s < shards.size(); ++s) {
    const auto shard_tensors = shards[s].tensors();
    for (size_t t = 0; t < shard_tensors.size(); ++t) {
      const TensorInfo& info = shard_tensors[t].info;
      const auto [other, is_new] = shard_of.emplace(info.name, s);
      if (!is_new) {
        return invalid_argument(directory + ": tensor '" + info.name + "' is in " +
                                shard_names[other->second] + " and in " + shard_names[s] +
                                ", wanted it once");
      }
      if (index != nullptr) {
        const auto entry = index->find(info.name);
        if (entry == index->end()) {
          return invalid_argument(directory + ": tensor '" + info.name + "' is in " +
                                  shard_names[s] + " but not in the index");
        }
        if (entry->second != shard_names[s]) {
          return invalid_argument(directory + ": tensor '" + info.name + "' is in " +
                                  shard_names[s] + ", but the index says " + entry->second);
        }
      }
      tensors.push_back(info);
      places.push_back({s, t});
    }
  }
  if (index == nullptr) return ok_status();
  for (const auto& [name, shard] : *index) {
    if (!shard_of.contains(name)) {
      return invalid_argument(directory + ": the index says tensor '" + printable(name) +
                              "' is in " + shard + ", but it is not there");
    }
  }
  return ok_status();
}

void Checkpoint::Impl::sort_by_name() {
  std::vector<size_t> order(tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [this](size_t a, size_t b) { return tensors[a].name < tensors[b].name; });
  std::vector<TensorInfo> sorted_tensors;
  std::vector<Place> sorted_places;
  for (const size_t i : order) {
    sorted_tensors.push_back(std::move(tensors[i]));
    sorted_places.push_back(places[i]);
  }
  tensors = std::move(sorted_tensors);
  places = std::move(sorted_places);
}

Result<Checkpoint> Checkpoint::open(const std::string& directory) {
  auto impl = std::make_unique<Impl>();
  impl->directory = directory;
  WARPROLL_TRY(impl->open_weights());
  WARPROLL_TRY(impl->open_files());
  return Checkpoint(std::move(impl));
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

const std::string& Checkpoint::directory() const { return impl_->directory; }
const CheckpointFiles& Checkpoint::files() const { return impl_->files; }
std::span<const TensorInfo> Checkpoint::tensors() const { return impl_->tensors; }

std::span<const std::byte> Checkpoint::bytes(size_t tensor_index) const {
  const Impl::Place place = impl_->places.at(tensor_index);
  return impl_->shards[place.shard].bytes(place.tensor);
}

std::string_view Checkpoint::shard_of(size_t tensor_index) const {
  return impl_->shard_names[impl_->places.at(tensor_index).shard];
}

}  // namespace warproll
