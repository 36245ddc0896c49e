// Manifest: everything both sides of a weight update agree on before a byte moves: the tensors in
// stream order with their places and digests, and the small files that go with them.
//
// The weights travel as one byte stream cut into buckets of `bucket_bytes` (the last may be short).
// Entry i starts at the next multiple of kArenaAlignment after the end of entry i - 1, entry 0 at
// 0; the fill between is zeros. So a tensor may cross buckets, and
// stream offset = bucket_index * bucket_bytes + bucket_offset_bytes.
//
// The JSON form (UTF-8, then zstd on the wire) comes from another machine: decode checks every
// field, every place and every digest that can be recomputed, and refuses with the entry's name,
// the value got and the value wanted. Unknown keys are refused. Thread: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/arena.h"
#include "protocol/records.h"
#include "protocol/status.h"
#include "weights_sync/checkpoint.h"
#include "weights_sync/digest.h"

namespace warproll {

inline constexpr uint32_t kManifestFormatVersion = 1;
inline constexpr uint64_t kMaxManifestTensors = 1'000'000;
inline constexpr uint64_t kMaxManifestJsonBytes = uint64_t{256} << 20;
inline constexpr uint64_t kMinBucketBytes = 4096;  // and a multiple of kArenaAlignment
inline constexpr uint64_t kMaxBucketBytes = uint64_t{1} << 32;

struct ManifestEntry {
  TensorInfo tensor;
  uint32_t bucket_index = 0;         // of its first byte
  uint64_t bucket_offset_bytes = 0;  // in that bucket, < bucket_bytes
  Digest digest{};                   // tensor digest (digest.h)
};

// What a receiver does to BF16/F32 linear weights: nothing, or the OCP MXFP8 recipe.
enum class QuantiseRecipe : uint8_t { kNone, kMxfp8 };
std::string_view to_string(QuantiseRecipe recipe);  // "none", "mxfp8"

// Greedy continuations the new weights must reproduce before they may serve.
struct GoldenPrompt {
  std::vector<int32_t> prompt_ids;    // at least one
  std::vector<int32_t> expected_ids;  // greedy, no stopping; at least one
  std::vector<float> logprobs;        // raw (temperature 1), of expected_ids; the trainer's own
  bool operator==(const GoldenPrompt&) const = default;
};
struct GoldenGate {
  std::vector<GoldenPrompt> prompts;  // at least one
  float max_abs_logprob_error = 1e-2f;
  bool operator==(const GoldenGate&) const = default;
};

struct Manifest {
  uint64_t weight_version = 0;
  // Names the version. Without quantisation it is the weight_digest of the entries; with it, the
  // digest of the quantised export (zero = the sender does not know it; the receiver computes it).
  Digest weight_digest{};
  Digest source_digest{};  // weight_digest of the entries, always
  uint64_t bucket_bytes = 0;
  QuantiseRecipe quantise = QuantiseRecipe::kNone;
  std::vector<ManifestEntry> entries;                 // in stream order
  std::vector<std::vector<std::string>> tied_groups;  // names of equal tensors
  CheckpointFiles files;
  Digest config_digest{};  // config_digest(files)
  std::optional<GoldenGate> gate;

  [[nodiscard]] uint64_t stream_offset(const ManifestEntry& entry) const {
    return entry.bucket_index * bucket_bytes + entry.bucket_offset_bytes;
  }
  [[nodiscard]] uint64_t stream_bytes() const;  // end of the last entry
  [[nodiscard]] uint64_t num_buckets() const;   // ceil(stream_bytes / bucket_bytes)
  [[nodiscard]] uint64_t bytes_of_bucket(uint64_t bucket_index) const;
  // Just the TensorInfos, in entry order, as a LayoutFunction wants them.
  [[nodiscard]] std::vector<TensorInfo> tensors() const;
};

// XXH3-128 over, for config.json, generation_config.json, hf_quant_config.json in that order:
// u64 little-endian length, text.
Digest config_digest(const CheckpointFiles& files);

// Everything decode_manifest checks, for a manifest made in this process.
Status validate(const Manifest& manifest);

// Entries in the checkpoint's (name) order. Reads every byte to digest it.
Result<Manifest> make_manifest(const Checkpoint& checkpoint, uint64_t weight_version,
                               uint64_t bucket_bytes, const ByteProgress& progress = {});

// Gives each entry its place in the stream (in entry order) and sets source_digest, weight_digest
// (unless quantised) and config_digest: the last step of whoever builds a Manifest by hand.
Status seal_manifest(Manifest& manifest);

std::string manifest_to_json(const Manifest& manifest);            // must be valid
Result<Manifest> manifest_from_json(std::string_view json);        // untrusted
std::string encode_manifest(const Manifest& manifest);             // JSON, zstd
Result<Manifest> decode_manifest(std::string_view zstd_and_json);  // untrusted

}  // namespace warproll
