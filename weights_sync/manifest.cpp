#include "weights_sync/manifest.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <unordered_map>
#include <unordered_set>

#include "protocol/utf8.h"
#include "weights_sync/tensor_check.h"

namespace warproll {
namespace {

constexpr size_t kMaxFileBytes = size_t{16} << 20;
constexpr size_t kMaxGatePrompts = 1000;
constexpr size_t kMaxGateTokens = 1'000'000;

std::string quoted(const ManifestEntry& entry) {
  return "manifest tensor '" + printable(entry.tensor.name) + "'";
}

Status check_bucket_bytes(uint64_t bucket_bytes) {
  const bool good = bucket_bytes >= kMinBucketBytes && bucket_bytes <= kMaxBucketBytes &&
                    bucket_bytes % kArenaAlignment == 0;
  if (good) return ok_status();
  return invalid_argument("manifest bucket_bytes is " + std::to_string(bucket_bytes) + ", wanted " +
                          std::to_string(kMinBucketBytes) + " to " +
                          std::to_string(kMaxBucketBytes) + " in multiples of " +
                          std::to_string(kArenaAlignment));
}

Status check_tensor(const TensorInfo& tensor) {
  WARPROLL_TRY(check_tensor_name(tensor.name));
  WARPROLL_TRY_ASSIGN(bytes, checked_tensor_bytes(tensor.dtype, tensor.shape));
  if (bytes == tensor.bytes) return ok_status();
  return invalid_argument("has " + std::to_string(tensor.bytes) + " bytes, but " +
                          std::string(to_string(tensor.dtype)) + " " +
                          shape_to_string(tensor.shape) + " wants " + std::to_string(bytes));
}

// Walks the entries in stream order; `visit(entry, stream_offset)` takes or checks the place.
template <typename Entries, typename Visit>
Status walk_stream(Entries& entries, const Visit& visit) {
  constexpr uint64_t kMaxStreamBytes = uint64_t{1} << 48;  // 256 TiB: far above any model
  uint64_t end = 0;
  for (auto& entry : entries) {
    WARPROLL_TRY(check_tensor(entry.tensor).with_context(quoted(entry)));
    const uint64_t start = align_to_arena(end);
    if (entry.tensor.bytes > kMaxStreamBytes - start) {
      return invalid_argument(quoted(entry) + " ends past " + std::to_string(kMaxStreamBytes) +
                              " stream bytes, the most there may be");
    }
    WARPROLL_TRY(visit(entry, start));
    end = start + entry.tensor.bytes;
  }
  return ok_status();
}

Status check_entries(const Manifest& manifest) {
  const auto& entries = manifest.entries;
  if (entries.empty() || entries.size() > kMaxManifestTensors) {
    return invalid_argument("manifest has " + std::to_string(entries.size()) +
                            " tensors, wanted 1 to " + std::to_string(kMaxManifestTensors));
  }
  std::unordered_set<std::string_view> names;
  for (const ManifestEntry& entry : entries) {
    if (!names.insert(entry.tensor.name).second) {
      return invalid_argument(quoted(entry) + " is listed twice, wanted once");
    }
  }
  return walk_stream(entries, [&](const ManifestEntry& entry, uint64_t start) {
    const uint64_t bucket = start / manifest.bucket_bytes;
    const uint64_t offset = start % manifest.bucket_bytes;
    if (entry.bucket_index == bucket && entry.bucket_offset_bytes == offset) return ok_status();
    return invalid_argument(quoted(entry) + " is at bucket " + std::to_string(entry.bucket_index) +
                            " offset " + std::to_string(entry.bucket_offset_bytes) +
                            ", wanted bucket " + std::to_string(bucket) + " offset " +
                            std::to_string(offset) + ", the next aligned place in the stream");
  });
}

Digest digest_of_entries(const Manifest& manifest) {
  std::vector<Digest> digests;
  digests.reserve(manifest.entries.size());
  for (const ManifestEntry& entry : manifest.entries) digests.push_back(entry.digest);
  return weight_digest(manifest.tensors(), digests);
}

Status check_digest(std::string_view what, const Digest& got, const Digest& wanted) {
  if (got == wanted) return ok_status();
  return data_loss("manifest " + std::string(what) + " is " + to_hex(got) +
                   ", but what it covers gives " + to_hex(wanted));
}

Status check_digests(const Manifest& manifest) {
  const Digest of_entries = digest_of_entries(manifest);
  WARPROLL_TRY(check_digest("source_digest", manifest.source_digest, of_entries));
  if (manifest.quantise == QuantiseRecipe::kNone) {
    WARPROLL_TRY(check_digest("weight_digest", manifest.weight_digest, of_entries));
  }
  return check_digest("config_digest", manifest.config_digest, config_digest(manifest.files));
}

Status check_files(const CheckpointFiles& files) {
  for (const std::string* text :
       {&files.config_json, &files.generation_config_json, &files.hf_quant_config_json}) {
    if (text->size() > kMaxFileBytes) {
      return invalid_argument("a model config file in the manifest has " +
                              std::to_string(text->size()) + " bytes, wanted at most " +
                              std::to_string(kMaxFileBytes));
    }
    if (!is_valid_utf8(*text)) {  // it could not go into JSON
      return invalid_argument("a model config file in the manifest is not UTF-8, wanted UTF-8");
    }
  }
  return ok_status();
}

Status check_tied_groups(const Manifest& manifest) {
  if (manifest.tied_groups.empty()) return ok_status();
  std::unordered_map<std::string_view, const ManifestEntry*> by_name;
  for (const ManifestEntry& entry : manifest.entries) by_name.emplace(entry.tensor.name, &entry);
  std::unordered_set<std::string_view> grouped;
  for (const auto& group : manifest.tied_groups) {
    if (group.size() < 2) {
      return invalid_argument("a tied group of the manifest has " + std::to_string(group.size()) +
                              " names, wanted at least 2");
    }
    const ManifestEntry* first = nullptr;
    for (const std::string& name : group) {
      const auto found = by_name.find(name);
      if (found == by_name.end() || !grouped.insert(name).second) {
        return invalid_argument("tied tensor '" + printable(name) +
                                "' is not in the manifest or in two groups, wanted once in each");
      }
      const ManifestEntry& entry = *found->second;
      if (first == nullptr) first = &entry;
      const bool equal = entry.digest == first->digest &&
                         entry.tensor.dtype == first->tensor.dtype &&
                         entry.tensor.shape == first->tensor.shape;
      if (!equal) {
        return invalid_argument("tied tensors '" + first->tensor.name + "' and '" + name +
                                "' differ in dtype, shape or digest, wanted equal");
      }
    }
  }
  return ok_status();
}

Status check_prompt(const GoldenPrompt& prompt) {
  if (prompt.prompt_ids.empty() || prompt.expected_ids.empty() ||
      prompt.prompt_ids.size() + prompt.expected_ids.size() > kMaxGateTokens) {
    return invalid_argument("has " + std::to_string(prompt.prompt_ids.size()) + " prompt and " +
                            std::to_string(prompt.expected_ids.size()) +
                            " expected ids, wanted at least 1 of each and at most " +
                            std::to_string(kMaxGateTokens) + " together");
  }
  if (prompt.logprobs.size() != prompt.expected_ids.size()) {
    return invalid_argument("has " + std::to_string(prompt.logprobs.size()) + " logprobs, wanted " +
                            std::to_string(prompt.expected_ids.size()) +
                            ", one for each expected id");
  }
  const auto negative = [](int32_t id) { return id < 0; };
  if (std::any_of(prompt.prompt_ids.begin(), prompt.prompt_ids.end(), negative) ||
      std::any_of(prompt.expected_ids.begin(), prompt.expected_ids.end(), negative)) {
    return invalid_argument("has a negative token id, wanted >= 0");
  }
  const auto finite = [](float value) { return std::isfinite(value); };
  if (!std::all_of(prompt.logprobs.begin(), prompt.logprobs.end(), finite)) {
    return invalid_argument("has a logprob that is NaN or Inf, wanted finite values");
  }
  return ok_status();
}

Status check_gate(const GoldenGate& gate) {
  if (gate.prompts.empty() || gate.prompts.size() > kMaxGatePrompts) {
    return invalid_argument("golden gate has " + std::to_string(gate.prompts.size()) +
                            " prompts, wanted 1 to " + std::to_string(kMaxGatePrompts));
  }
  if (!std::isfinite(gate.max_abs_logprob_error) || gate.max_abs_logprob_error <= 0) {
    return invalid_argument("golden gate max_abs_logprob_error is " +
                            std::to_string(gate.max_abs_logprob_error) + ", wanted > 0");
  }
  for (size_t i = 0; i < gate.prompts.size(); ++i) {
    WARPROLL_TRY(
        check_prompt(gate.prompts[i]).with_context("golden gate prompt " + std::to_string(i)));
  }
  return ok_status();
}

}  // namespace

std::string_view to_string(QuantiseRecipe recipe) {
  switch (recipe) {
    case QuantiseRecipe::kNone:
      return "none";
    case QuantiseRecipe::kMxfp8:
      return "mxfp8";
  }
  return "unknown";
}

uint64_t Manifest::stream_bytes() const {
  return entries.empty() ? 0 : stream_offset(entries.back()) + entries.back().tensor.bytes;
}

uint64_t Manifest::num_buckets() const {
  return (stream_bytes() + bucket_bytes - 1) / bucket_bytes;
}

uint64_t Manifest::bytes_of_bucket(uint64_t bucket_index) const {
  WARPROLL_CHECK(bucket_index < num_buckets(),
                 "bucket " + std::to_string(bucket_index) + " of " + std::to_string(num_buckets()));
  return std::min(bucket_bytes, stream_bytes() - bucket_index * bucket_bytes);
}

std::vector<TensorInfo> Manifest::tensors() const {
  std::vector<TensorInfo> infos;
  infos.reserve(entries.size());
  for (const ManifestEntry& entry : entries) infos.push_back(entry.tensor);
  return infos;
}

Digest config_digest(const CheckpointFiles& files) {
  std::string text;
  for (const std::string* file :
       {&files.config_json, &files.generation_config_json, &files.hf_quant_config_json}) {
    for (int shift = 0; shift < 64; shift += 8) {
      text += static_cast<char>(static_cast<uint64_t>(file->size()) >> shift);
    }
    text += *file;
  }
  return xxh3_128(std::as_bytes(std::span(text)));
}

Status validate(const Manifest& manifest) {
  if (manifest.weight_version == 0) {
    return invalid_argument("manifest weight_version is 0, wanted at least 1");
  }
  WARPROLL_TRY(check_bucket_bytes(manifest.bucket_bytes));
  WARPROLL_TRY(check_entries(manifest));
  WARPROLL_TRY(check_files(manifest.files));
  WARPROLL_TRY(check_digests(manifest));
  WARPROLL_TRY(check_tied_groups(manifest));
  return manifest.gate ? check_gate(*manifest.gate) : ok_status();
}

Status seal_manifest(Manifest& manifest) {
  WARPROLL_TRY(check_bucket_bytes(manifest.bucket_bytes));
  WARPROLL_TRY(walk_stream(manifest.entries, [&](ManifestEntry& entry, uint64_t start) {
    entry.bucket_index = static_cast<uint32_t>(start / manifest.bucket_bytes);
    entry.bucket_offset_bytes = start % manifest.bucket_bytes;
    return ok_status();
  }));
  manifest.source_digest = digest_of_entries(manifest);
  if (manifest.quantise == QuantiseRecipe::kNone) manifest.weight_digest = manifest.source_digest;
  manifest.config_digest = config_digest(manifest.files);
  return validate(manifest);
}

Result<Manifest> make_manifest(const Checkpoint& checkpoint, uint64_t weight_version,
                               uint64_t bucket_bytes, const ByteProgress& progress) {
  const std::vector<Digest> digests = tensor_digests(checkpoint, progress);
  Manifest manifest;
  manifest.weight_version = weight_version;
  manifest.bucket_bytes = bucket_bytes;
  manifest.files = checkpoint.files();
  const auto tensors = checkpoint.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    manifest.entries.push_back({.tensor = tensors[i], .digest = digests[i]});
  }
  WARPROLL_TRY(seal_manifest(manifest).with_context(checkpoint.directory()));
  return manifest;
}

}  // namespace warproll
