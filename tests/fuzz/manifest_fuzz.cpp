// Any bytes as a manifest, as JSON and as a zstd frame: refused, or it is valid and survives its
// own JSON. Digests would stop nearly every mutant, so an input is also read with its digests put
// right first.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "weights_sync/manifest.h"

namespace {

void check_round_trip(const warproll::Manifest& manifest) {
  if (!warproll::validate(manifest).ok()) std::abort();
  const std::string json = warproll::manifest_to_json(manifest);
  const auto again = warproll::manifest_from_json(json);
  if (!again.ok() || warproll::manifest_to_json(*again) != json) std::abort();
  uint64_t covered = 0;
  for (uint64_t i = 0; i < manifest.num_buckets() && i < 1000; ++i) {
    covered += manifest.bytes_of_bucket(i);
  }
  if (manifest.num_buckets() <= 1000 && covered != manifest.stream_bytes()) std::abort();
}

// The wrong digest's error says the right one: put it in and try again, three digests at most.
void read_with_right_digests(std::string json) {
  for (int i = 0; i < 4; ++i) {
    const auto manifest = warproll::manifest_from_json(json);
    if (manifest.ok()) return check_round_trip(*manifest);
    const std::string& error = manifest.status().message();
    constexpr std::string_view kGives = "but what it covers gives ";
    const size_t at = error.find(kGives);
    const size_t field_end = error.find(" is ");
    if (at == std::string::npos || field_end == std::string::npos || field_end < 9) return;
    const std::string field = error.substr(9, field_end - 9);  // after "manifest "
    // An error may quote the input, and an input may quote an error: only an object is put right.
    auto tree = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
    if (!tree.is_object()) return;
    tree[field] = error.substr(at + kGives.size());
    json = tree.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto unpacked = warproll::decode_manifest(input);
  if (unpacked.ok()) check_round_trip(*unpacked);
  read_with_right_digests(std::string(input));
  return 0;
}
