// The two records the system exists for: Task (trainer -> worker) and Trajectory (worker ->
// trainer), as plain structs. On the wire and in the log they are Cap'n Proto (records.capnp);
// codec.h converts. validate() is the one place that says what a well-formed record is.
// Axis letters: T tokens of the whole trajectory (prompt + response), K routed experts a token,
// L MoE layers. Thread: plain values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/status.h"

namespace warproll {

// XXH3-128 in canonical (big-endian) byte order. All zero = none.
using Digest = std::array<uint8_t, 16>;
std::string to_hex(const Digest& digest);              // 32 lower-case hex digits
Result<Digest> digest_from_hex(std::string_view hex);  // wants exactly 32 hex digits
using ProducerId = std::array<uint8_t, 16>;            // random, made once per log directory

// What a sequence does when new weights are committed while it is in flight (weight_sync.md).
enum class InFlightPolicy : uint8_t { kKeep, kRecompute, kAbort, kPin };
enum class FinishReason : uint8_t { kStop, kLength, kAbort, kError };
enum class EventKind : uint8_t { kFlipKeep, kFlipRecompute, kPreemptRecompute };
enum class Role : uint8_t { kSystem, kUser, kAssistant, kTool };

std::string_view to_string(InFlightPolicy policy);  // "keep" ...
std::string_view to_string(FinishReason reason);    // "stop" ...
std::string_view to_string(EventKind kind);         // "flip_keep" ...
std::string_view to_string(Role role);              // "system" ...
Result<InFlightPolicy> in_flight_policy_from(std::string_view text);

struct SamplingParams {
  float temperature = 1.0f;  // >= 0; 0 = greedy
  float top_p = 1.0f;        // (0, 1]
  int32_t top_k = 0;         // 0 = off
  float min_p = 0.0f;        // [0, 1]
  int32_t max_tokens = 256;  // >= 1, sampled tokens
  std::vector<int32_t> stop_token_ids;
  std::vector<std::string> stop_strings;  // UTF-8, each 1..1024 bytes
  bool ignore_eos = false;
  uint64_t seed = 0;  // Philox key, with sample_index
  bool operator==(const SamplingParams&) const = default;
};
Status validate(const SamplingParams& sampling);

struct ChatMessage {
  Role role = Role::kUser;
  std::string content;
  bool operator==(const ChatMessage&) const = default;
};

// Exactly one of prompt_ids, prompt_text, messages is set.
struct Task {
  std::string task_id;     // 1..256 bytes, unique in a run; the lease and the dedupe key
  std::string group_id;    // empty = task_id
  int32_t group_size = 1;  // n samples, >= 1; sample_index is 0..n-1
  std::vector<int32_t> prompt_ids;
  std::string prompt_text;
  std::vector<ChatMessage> messages;
  SamplingParams sampling;
  std::string env = "single_turn";
  InFlightPolicy in_flight = InFlightPolicy::kKeep;
  uint32_t deadline_ms = 0;  // from receipt, 0 = none; past it the samples end as abort
  bool return_routes = false;
  std::string metadata;  // opaque, returned unchanged in every trajectory of the task
  // Which samples of the group to make; empty = all. The trainer reissues only what it lacks.
  std::vector<int32_t> sample_indices;
  bool operator==(const Task&) const = default;
};
Status validate(const Task& task);

// Tokens [start, next run's start) were sampled under weight_version. Runs tile [prompt_len, T).
struct VersionRun {
  int32_t start = 0;  // index into token_ids
  uint64_t weight_version = 0;
  bool operator==(const VersionRun&) const = default;
};
struct VersionDigest {
  uint64_t weight_version = 0;
  Digest weight_digest{};
  bool operator==(const VersionDigest&) const = default;
};
// What happened between two tokens. Without it a sample that met a swap or a preemption cannot be
// regenerated. `at_token` is the index in token_ids of the first token sampled after the event.
//   kFlipKeep:          from the forward pass that yields token at_token on (it forwards position
//                       at_token - 1), the weights are `weight_version`; older KV stays as it was.
//   kFlipRecompute:     the weights are `weight_version` and all KV [0, at_token) was computed anew
//                       under it before token at_token was sampled.
//   kPreemptRecompute:  the KV was dropped and computed anew under `weight_version` (the version
//                       that was current for the sequence at that time).
struct TrajectoryEvent {
  int32_t at_token = 0;
  EventKind kind = EventKind::kFlipKeep;
  uint64_t weight_version = 0;
  bool operator==(const TrajectoryEvent&) const = default;
};
struct RoleSpan {
  int32_t start = 0;
  int32_t end = 0;  // exclusive
  Role role = Role::kUser;
  bool operator==(const RoleSpan&) const = default;
};
// Expert ids each forwarded token was routed to. [T-1, L, K], u8 if num_experts <= 256 else u16,
// little-endian; the last token is never forwarded.
struct RoutedExperts {
  int32_t num_tokens = 0;  // T - 1
  int32_t num_layers = 0;  // L, MoE layers only
  int32_t top_k = 0;       // K
  uint8_t bytes_per_id = 1;
  std::vector<uint8_t> data;
  bool operator==(const RoutedExperts&) const = default;
};
struct Reward {
  double total = 0.0;
  std::vector<std::pair<std::string, double>> components;
  bool operator==(const Reward&) const = default;
};
// Wall-clock nanoseconds since the Unix epoch; 0 = did not happen.
struct Timings {
  int64_t task_received_ns = 0;
  int64_t admitted_ns = 0;  // first scheduled
  int64_t first_token_ns = 0;
  int64_t sealed_ns = 0;
  bool operator==(const Timings&) const = default;
};

struct Trajectory {
  std::string trajectory_id;  // "<producer hex>-<seq>", unique for ever
  ProducerId producer_id{};
  uint64_t epoch = 0;  // of the worker process that sealed it
  uint64_t seq = 0;    // position in the producer's log, from 1, gap-free
  std::string task_id;
  std::string group_id;
  int32_t sample_index = 0;

  std::vector<int32_t> token_ids;  // [T] prompt + response; the EOS or stop token is kept
  int32_t prompt_len = 0;
  std::vector<uint8_t> loss_mask;   // [T] 1 = sampled by the policy
  std::vector<float> logprobs;      // [T] ln p under the sampling distribution, 0 where mask is 0
  std::vector<float> raw_logprobs;  // [T] ln p under the model at temperature 1, untruncated
  std::vector<float>
      support_logmass;  // [T] ln of the model mass, at that temperature, of the kept support
  std::vector<VersionRun> version_runs;
  std::vector<VersionDigest> version_digests;  // one for each version in runs or events
  std::vector<TrajectoryEvent> events;
  std::optional<RoutedExperts> routed_experts;
  std::vector<RoleSpan> role_spans;

  FinishReason finish_reason = FinishReason::kStop;
  std::string text;  // decoded response, cut at the stop string
  std::optional<Reward> reward;
  std::string error_type;  // set with kError, and with kAbort as the reason
  std::string error_message;
  SamplingParams sampling;
  InFlightPolicy in_flight = InFlightPolicy::kKeep;
  Timings timings;
  std::string model;             // architecture and name, for people
  std::string activation_dtype;  // "f32" | "bf16" | "f16"
  Digest tokenizer_digest{};
  std::string engine_version;
  std::string metadata;
  bool operator==(const Trajectory&) const = default;
};
// Lengths, finite values, shift, tiling of runs, ids >= 0: refuse with what is wrong, never repair.
// vocab_size 0 = unknown (id upper bound unchecked).
Status validate(const Trajectory& trajectory, int32_t vocab_size);

}  // namespace warproll
