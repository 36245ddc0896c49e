#include "weights_sync/nccl/nccl_terms.h"

#include <algorithm>
#include <charconv>

namespace warproll {
namespace {

constexpr std::string_view kVersion = "nccl.version";
constexpr std::string_view kMaxCtas = "nccl.max_ctas";
constexpr std::string_view kSlots = "nccl.slots";  // kRegistered, or not said
constexpr std::string_view kRegistered = "registered";
constexpr std::string_view kArenas = "nccl.arenas";  // kReceived: a worker takes packed ones
constexpr std::string_view kReceived = "received";
constexpr std::string_view kArenaLayout = "nccl.arena.layout";  // what is sent, if it is one
constexpr std::string_view kArenaBytes = "nccl.arena.bytes";
constexpr std::string_view kArenaDigest = "nccl.arena.digest";
// Interfaces, debugging and the like may differ from machine to machine; these may not.
constexpr std::string_view kShared[] = {
    "NCCL_ALGO",          "NCCL_PROTO",         "NCCL_NET",      "NCCL_BUFFSIZE",
    "NCCL_NTHREADS",      "NCCL_MIN_CTAS",      "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS", "NCCL_LOCAL_REGISTER"};

std::string value_of(const HelloEnvironment& terms, std::string_view key) {
  const auto found = std::find_if(terms.begin(), terms.end(),
                                  [key](const auto& term) { return term.first == key; });
  return found == terms.end() ? std::string() : found->second;
}

}  // namespace

HelloEnvironment nccl_terms(const std::string& version, int32_t max_ctas,
                            const HelloEnvironment& environment) {
  HelloEnvironment terms = {{std::string(kVersion), version},
                            {std::string(kMaxCtas), std::to_string(max_ctas)},
                            {std::string(kSlots), std::string(kRegistered)},
                            {std::string(kArenas), std::string(kReceived)}};
  terms.insert(terms.end(), environment.begin(), environment.end());
  return terms;
}

std::string encode_nccl_terms(const HelloEnvironment& terms) {
  std::string text;
  for (const auto& [key, value] : terms) {
    const bool is_shared =
        key == kVersion || key == kMaxCtas || key == kSlots || key == kArenaLayout ||
        key == kArenaBytes || key == kArenaDigest ||
        std::find(std::begin(kShared), std::end(kShared), key) != std::end(kShared);
    if (is_shared) text += key + "=" + value + "\n";
  }
  return text;
}

HelloEnvironment decode_nccl_terms(std::string_view source) {
  HelloEnvironment terms;
  while (!source.empty()) {
    const std::string_view line = source.substr(0, source.find('\n'));
    source.remove_prefix(std::min(source.size(), line.size() + 1));
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    terms.emplace_back(line.substr(0, equals), line.substr(equals + 1));
  }
  return terms;
}

void add_packed_arena(HelloEnvironment& terms, const PackedArena& packed) {
  terms.emplace_back(kArenaLayout, to_hex(packed.layout));
  terms.emplace_back(kArenaBytes, std::to_string(packed.bytes));
  terms.emplace_back(kArenaDigest, to_hex(packed.digest));
}

Result<std::optional<PackedArena>> packed_arena_in(const HelloEnvironment& terms) {
  const std::string layout = value_of(terms, kArenaLayout);
  const std::string bytes = value_of(terms, kArenaBytes);
  const std::string digest = value_of(terms, kArenaDigest);
  if (layout.empty() && bytes.empty() && digest.empty()) return std::optional<PackedArena>();
  const auto named = [](std::string_view key, const Result<Digest>& value) {
    return value.status().with_context(std::string(key));
  };
  PackedArena packed;
  const Result<Digest> layout_key = digest_from_hex(layout);
  WARPROLL_TRY(named(kArenaLayout, layout_key));
  const Result<Digest> arena_digest = digest_from_hex(digest);
  WARPROLL_TRY(named(kArenaDigest, arena_digest));
  packed.layout = *layout_key;
  packed.digest = *arena_digest;
  const char* const end = bytes.data() + bytes.size();
  const auto [parsed, error] = std::from_chars(bytes.data(), end, packed.bytes);
  if (error != std::errc() || parsed != end || packed.bytes == 0) {
    return invalid_argument(std::string(kArenaBytes) + " is '" + bytes +
                            "', wanted a number of bytes above 0");
  }
  return std::optional<PackedArena>(packed);
}

bool with_registered_slots(const HelloEnvironment& terms) {
  return value_of(terms, kSlots) == kRegistered;
}

int32_t max_ctas_of(const HelloEnvironment& terms) {
  const std::string text = value_of(terms, kMaxCtas);
  int32_t value = 0;
  (void)std::from_chars(text.data(), text.data() + text.size(), value);
  return std::max(0, value);
}

Status check_nccl_terms(const HelloEnvironment& trainer, const HelloEnvironment& worker) {
  const auto differ = [&](std::string_view key, const std::string& name) {
    return failed_precondition(name + " is '" + value_of(worker, key) + "' at the worker, '" +
                               value_of(trainer, key) + "' at the trainer: wanted the same");
  };
  if (value_of(trainer, kVersion) != value_of(worker, kVersion)) {
    return differ(kVersion, "the NCCL version");
  }
  if (!value_of(trainer, kSlots).empty() && value_of(trainer, kSlots) != value_of(worker, kSlots)) {
    return differ(kSlots, std::string(kSlots));
  }
  if (!value_of(trainer, kArenaLayout).empty() && value_of(worker, kArenas) != kReceived) {
    return failed_precondition("the trainer sends a packed arena, " + std::string(kArenas) +
                               " is '" + value_of(worker, kArenas) + "' at the worker, wanted '" +
                               std::string(kReceived) + "'");
  }
  for (const std::string_view key : kShared) {
    if (value_of(trainer, key) != value_of(worker, key)) return differ(key, std::string(key));
  }
  const int32_t wanted = max_ctas_of(trainer);
  const int32_t allowed = max_ctas_of(worker);
  if (allowed != 0 && (wanted == 0 || wanted > allowed)) {
    return failed_precondition("the trainer's NCCL uses up to " + std::to_string(wanted) +
                               " CTAs (checkpoints.nccl_max_ctas), this worker allows " +
                               std::to_string(allowed) + " (weights.nccl_max_ctas)");
  }
  return ok_status();
}

}  // namespace warproll
