// The JSON form of a Manifest (manifest.h).
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "protocol/strict_json.h"
#include "weights_sync/manifest.h"
#include "weights_sync/tensor_check.h"

namespace warproll {
namespace {

using Json = nlohmann::json;

constexpr char kFormat[] = "warproll-manifest";
// {"gate": {"prompts": [{"prompt_ids": [..]}]}} is the deepest.
constexpr JsonLimits kManifestLimits{.max_depth = 6, .max_values = 24 << 20};

// Reads the fields of one JSON object. The first failure sticks; finish() also refuses fields that
// nobody asked for.
class Fields {
 public:
  Fields(const Json& object, std::string what) : object_(object), what_(std::move(what)) {
    if (!object.is_object()) fail("is " + std::string(object.type_name()) + ", wanted an object");
  }

  const Json* optional(const char* name) {
    if (!status_.ok()) return nullptr;
    const auto found = object_.find(name);
    if (found == object_.end()) return nullptr;
    ++num_seen_;
    return &*found;
  }
  const Json* required(const char* name) {
    const Json* value = optional(name);
    if (value == nullptr) fail("has no " + std::string(name) + ", wanted it");
    return value;
  }

  void text(const char* name, std::string& out) {
    const Json* value = required(name);
    if (value == nullptr) return;
    if (!value->is_string()) return wrong(name, *value, "a string");
    out = value->get<std::string>();
  }
  template <typename Integer>
  void unsigned_integer(const char* name, Integer& out) {
    const Json* value = required(name);
    if (value == nullptr) return;
    const bool good = value->is_number_unsigned() &&
                      value->get<uint64_t>() <= std::numeric_limits<Integer>::max();
    const auto max = std::numeric_limits<Integer>::max();
    if (!good) return wrong(name, *value, "an integer from 0 to " + std::to_string(max));
    out = static_cast<Integer>(value->get<uint64_t>());
  }
  void digest(const char* name, Digest& out) {
    std::string hex;
    text(name, hex);
    if (!status_.ok()) return;
    const Result<Digest> parsed = digest_from_hex(hex);
    if (!parsed.ok()) return fail(std::string(name) + ": " + printable(parsed.status().message()));
    out = *parsed;
  }
  void real(const char* name, float& out) {
    const Json* value = required(name);
    if (value == nullptr) return;
    if (!value->is_number()) return wrong(name, *value, "a number");
    out = value->get<float>();
  }
  // An array of integers in Integer's range from `min` up.
  template <typename Integer>
  void integers(const char* name, Integer min, std::vector<Integer>& out) {
    const Json* value = required(name);
    if (value == nullptr) return;
    if (!value->is_array()) return wrong(name, *value, "an array of integers");
    out.reserve(value->size());
    for (const Json& item : *value) {
      const bool good =
          item.is_number_unsigned() &&
          item.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<Integer>::max()) &&
          static_cast<Integer>(item.get<uint64_t>()) >= min;
      const auto max = std::numeric_limits<Integer>::max();
      if (!good) {
        return wrong(name, item,
                     "integers from " + std::to_string(min) + " to " + std::to_string(max));
      }
      out.push_back(static_cast<Integer>(item.get<uint64_t>()));
    }
  }

  void fail(const std::string& message) {
    if (status_.ok()) status_ = invalid_argument(what_ + " " + message);
  }
  void wrong(const char* name, const Json& got, const std::string& wanted) {
    fail(std::string("has ") + name + " " + printable(shown(got)) + ", wanted " + wanted);
  }
  [[nodiscard]] bool ok() const { return status_.ok(); }
  [[nodiscard]] Status finish() {
    if (status_.ok() && num_seen_ != object_.size()) {
      fail("has " + std::to_string(object_.size()) + " fields, wanted only the " +
           std::to_string(num_seen_) + " that are known");
    }
    return status_;
  }

 private:
  static std::string shown(const Json& value) {
    return value.is_structured() ? std::string(value.type_name()) : value.dump();
  }

  const Json& object_;
  std::string what_;
  size_t num_seen_ = 0;
  Status status_;
};

Status read_entry(const Json& json, size_t index, ManifestEntry& entry) {
  Fields fields(json, "manifest tensor " + std::to_string(index));
  fields.text("name", entry.tensor.name);
  std::string dtype;
  fields.text("dtype", dtype);
  fields.integers<int64_t>("shape", 0, entry.tensor.shape);
  fields.unsigned_integer("bytes", entry.tensor.bytes);
  fields.unsigned_integer("bucket", entry.bucket_index);
  fields.unsigned_integer("offset", entry.bucket_offset_bytes);
  fields.digest("digest", entry.digest);
  if (fields.ok()) {
    const auto known = dtype_from_safetensors(dtype);
    if (!known) fields.fail("has dtype '" + printable(dtype) + "', which is not known");
    if (known) entry.tensor.dtype = *known;
  }
  return fields.finish();
}

Status read_entries(const Json& json, std::vector<ManifestEntry>& entries) {
  if (!json.is_array() || json.size() > kMaxManifestTensors) {
    return invalid_argument("manifest tensors is " + std::string(json.type_name()) + " of " +
                            std::to_string(json.size()) + ", wanted an array of at most " +
                            std::to_string(kMaxManifestTensors));
  }
  entries.resize(json.size());
  for (size_t i = 0; i < json.size(); ++i) WARPROLL_TRY(read_entry(json[i], i, entries[i]));
  return ok_status();
}

Status read_files(const Json& json, CheckpointFiles& files) {
  Fields fields(json, "manifest files");
  fields.text("config.json", files.config_json);
  fields.text("generation_config.json", files.generation_config_json);
  fields.text("hf_quant_config.json", files.hf_quant_config_json);
  return fields.finish();
}

Status read_tied_groups(const Json& json, std::vector<std::vector<std::string>>& groups) {
  const Status wrong =
      invalid_argument("manifest tied_groups is malformed, wanted an array of arrays of names");
  if (!json.is_array()) return wrong;
  for (const Json& item : json) {
    if (!item.is_array()) return wrong;
    std::vector<std::string>& group = groups.emplace_back();
    for (const Json& name : item) {
      if (!name.is_string()) return wrong;
      group.push_back(name.get<std::string>());
    }
  }
  return ok_status();
}

Status read_prompt(const Json& json, size_t index, GoldenPrompt& prompt) {
  Fields fields(json, "golden gate prompt " + std::to_string(index));
  fields.integers<int32_t>("prompt_ids", 0, prompt.prompt_ids);
  fields.integers<int32_t>("expected_ids", 0, prompt.expected_ids);
  if (const Json* logprobs = fields.required("logprobs")) {
    if (!logprobs->is_array()) fields.wrong("logprobs", *logprobs, "an array of numbers");
    for (const Json& value : *logprobs) {
      if (!value.is_number()) {
        fields.wrong("logprobs", value, "an array of numbers");
        break;
      }
      prompt.logprobs.push_back(value.get<float>());
    }
  }
  return fields.finish();
}

Status read_gate(const Json& json, GoldenGate& gate) {
  Fields fields(json, "golden gate");
  fields.real("max_abs_logprob_error", gate.max_abs_logprob_error);
  const Json* prompts = fields.required("prompts");
  WARPROLL_TRY(fields.finish());
  if (!prompts->is_array()) return invalid_argument("golden gate prompts is no array, wanted one");
  for (size_t i = 0; i < prompts->size(); ++i) {
    WARPROLL_TRY(read_prompt((*prompts)[i], i, gate.prompts.emplace_back()));
  }
  return ok_status();
}

Status read_recipe(const std::string& word, QuantiseRecipe& recipe) {
  for (const QuantiseRecipe known : {QuantiseRecipe::kNone, QuantiseRecipe::kMxfp8}) {
    if (word != to_string(known)) continue;
    recipe = known;
    return ok_status();
  }
  return invalid_argument("manifest quantise is '" + printable(word) + "', wanted none or mxfp8");
}

void read_format(Fields& fields) {
  std::string format;
  uint32_t version = 0;
  fields.text("format", format);
  fields.unsigned_integer("format_version", version);
  if (fields.ok() && (format != kFormat || version != kManifestFormatVersion)) {
    fields.fail("is '" + printable(format) + "' version " + std::to_string(version) + ", wanted '" +
                kFormat + "' version " + std::to_string(kManifestFormatVersion));
  }
}

Status read_manifest(const Json& json, Manifest& manifest) {
  Fields fields(json, "manifest");
  read_format(fields);
  fields.unsigned_integer("weight_version", manifest.weight_version);
  fields.digest("weight_digest", manifest.weight_digest);
  fields.digest("source_digest", manifest.source_digest);
  fields.digest("config_digest", manifest.config_digest);
  fields.unsigned_integer("bucket_bytes", manifest.bucket_bytes);
  std::string recipe;
  fields.text("quantise", recipe);
  const Json* files = fields.required("files");
  const Json* tied_groups = fields.required("tied_groups");
  const Json* tensors = fields.required("tensors");
  const Json* gate = fields.optional("gate");
  WARPROLL_TRY(fields.finish());
  WARPROLL_TRY(read_recipe(recipe, manifest.quantise));
  WARPROLL_TRY(read_files(*files, manifest.files));
  WARPROLL_TRY(read_tied_groups(*tied_groups, manifest.tied_groups));
  WARPROLL_TRY(read_entries(*tensors, manifest.entries));
  if (gate != nullptr) WARPROLL_TRY(read_gate(*gate, manifest.gate.emplace()));
  return ok_status();
}

Json write_gate(const GoldenGate& gate) {
  Json prompts = Json::array();
  for (const GoldenPrompt& prompt : gate.prompts) {
    prompts.push_back({{"prompt_ids", prompt.prompt_ids},
                       {"expected_ids", prompt.expected_ids},
                       {"logprobs", prompt.logprobs}});
  }
  return {{"max_abs_logprob_error", gate.max_abs_logprob_error}, {"prompts", std::move(prompts)}};
}

}  // namespace

std::string manifest_to_json(const Manifest& manifest) {
  Json tensors = Json::array();
  for (const ManifestEntry& entry : manifest.entries) {
    tensors.push_back({{"name", entry.tensor.name},
                       {"dtype", to_string(entry.tensor.dtype)},
                       {"shape", entry.tensor.shape},
                       {"bytes", entry.tensor.bytes},
                       {"bucket", entry.bucket_index},
                       {"offset", entry.bucket_offset_bytes},
                       {"digest", to_hex(entry.digest)}});
  }
  Json json = {{"format", kFormat},
               {"format_version", kManifestFormatVersion},
               {"weight_version", manifest.weight_version},
               {"weight_digest", to_hex(manifest.weight_digest)},
               {"source_digest", to_hex(manifest.source_digest)},
               {"config_digest", to_hex(manifest.config_digest)},
               {"bucket_bytes", manifest.bucket_bytes},
               {"quantise", to_string(manifest.quantise)},
               {"files",
                {{"config.json", manifest.files.config_json},
                 {"generation_config.json", manifest.files.generation_config_json},
                 {"hf_quant_config.json", manifest.files.hf_quant_config_json}}},
               {"tied_groups", Json::array()},
               {"tensors", std::move(tensors)}};
  for (const auto& group : manifest.tied_groups) json["tied_groups"].push_back(group);
  if (manifest.gate) json["gate"] = write_gate(*manifest.gate);
  return json.dump();
}

Result<Manifest> manifest_from_json(std::string_view text) {
  if (text.size() > kMaxManifestJsonBytes) {
    return invalid_argument("manifest has " + std::to_string(text.size()) +
                            " bytes of JSON, wanted at most " +
                            std::to_string(kMaxManifestJsonBytes));
  }
  WARPROLL_TRY(check_json(text, "manifest", kManifestLimits));
  Manifest manifest;
  WARPROLL_TRY(read_manifest(Json::parse(text), manifest));
  WARPROLL_TRY(validate(manifest));
  return manifest;
}

}  // namespace warproll
