// validate(Trajectory): every promise of the struct in records.h, in its order.
#include <algorithm>
#include <cmath>
#include <set>

#include "protocol/record_checks.h"
#include "protocol/records.h"

namespace warproll {
namespace {

// ln of a probability that is 1 may come out a few ulps above 0.
constexpr float kLogOneTolerance = 1e-4f;

std::string at(const char* name, size_t index) {
  return std::string("Trajectory.") + name + "[" + std::to_string(index) + "]";
}

Status wrong(const std::string& name, const std::string& got, const std::string& wanted) {
  return invalid_argument(name + " is " + got + ", wanted " + wanted);
}

Status check_identity(const Trajectory& t) {
  if (t.seq == 0) return wrong("Trajectory.seq", "0", ">= 1");
  const std::string id = to_hex(t.producer_id) + "-" + std::to_string(t.seq);
  WARPROLL_TRY(check_text("Trajectory.trajectory_id", t.trajectory_id, kMaxIdBytes));
  if (t.trajectory_id != id) return wrong("Trajectory.trajectory_id", t.trajectory_id, id);
  WARPROLL_TRY(check_text("Trajectory.task_id", t.task_id, kMaxIdBytes));
  WARPROLL_TRY(check_text("Trajectory.group_id", t.group_id, kMaxIdBytes));
  if (t.sample_index < 0 || t.sample_index >= kMaxGroupSize) {
    return wrong("Trajectory.sample_index", std::to_string(t.sample_index),
                 "0.." + std::to_string(kMaxGroupSize - 1));
  }
  return {};
}

bool ended_early(const Trajectory& t) {
  return t.finish_reason == FinishReason::kAbort || t.finish_reason == FinishReason::kError;
}

Status check_lengths(const Trajectory& t) {
  const size_t num_tokens = t.token_ids.size();
  const std::string tokens = std::to_string(num_tokens);
  if (num_tokens > INT32_MAX) return wrong("Trajectory.token_ids' length", tokens, "< 2^31");
  const auto length = [&](const char* name, size_t got) {
    if (got == num_tokens) return Status{};
    return invalid_argument(std::string("Trajectory.") + name + " has " + std::to_string(got) +
                            " elements, wanted " + tokens + " (one for each token)");
  };
  WARPROLL_TRY(length("loss_mask", t.loss_mask.size()));
  WARPROLL_TRY(length("logprobs", t.logprobs.size()));
  WARPROLL_TRY(length("raw_logprobs", t.raw_logprobs.size()));
  WARPROLL_TRY(length("support_logmass", t.support_logmass.size()));
  // A sample that failed may have neither prompt nor response; any other has both.
  const int32_t total = static_cast<int32_t>(num_tokens);
  const int32_t low = ended_early(t) && total == 0 ? 0 : 1;
  const int32_t high = ended_early(t) ? total : total - 1;
  if (t.prompt_len < low || t.prompt_len > high) {
    return wrong("Trajectory.prompt_len", std::to_string(t.prompt_len),
                 std::to_string(low) + ".." + std::to_string(high) + " of " + tokens +
                     " tokens, finish_reason " + std::string(to_string(t.finish_reason)));
  }
  return {};
}

Status check_mask(const Trajectory& t) {
  for (size_t i = 0; i < t.loss_mask.size(); ++i) {
    const bool prompt = i < static_cast<size_t>(t.prompt_len);
    if (t.loss_mask[i] <= (prompt ? 0 : 1)) continue;
    return wrong(at("loss_mask", i), std::to_string(t.loss_mask[i]),
                 prompt ? "0 (prompt)" : "0 or 1");
  }
  return {};
}

Status check_logs(const Trajectory& t, const char* name, const std::vector<float>& logs) {
  for (size_t i = 0; i < logs.size(); ++i) {
    if (t.loss_mask[i] == 0) {
      if (logs[i] == 0.0f) continue;
      return wrong(at(name, i), std::to_string(logs[i]), "0 where loss_mask is 0");
    }
    if (std::isfinite(logs[i]) && logs[i] <= kLogOneTolerance) continue;
    return wrong(at(name, i), std::to_string(logs[i]), "finite and <= 0");
  }
  return {};
}

Status check_runs(const Trajectory& t) {
  const int32_t total = static_cast<int32_t>(t.token_ids.size());
  if (t.version_runs.empty() != (t.prompt_len == total)) {
    return invalid_argument("Trajectory.version_runs has " + std::to_string(t.version_runs.size()) +
                            " runs, wanted them to tile [" + std::to_string(t.prompt_len) + ", " +
                            std::to_string(total) + ")");
  }
  for (size_t i = 0; i < t.version_runs.size(); ++i) {
    const int32_t start = t.version_runs[i].start;
    if (i == 0 && start != t.prompt_len) {
      return wrong(at("version_runs", i) + ".start", std::to_string(start),
                   std::to_string(t.prompt_len) + " (prompt_len)");
    }
    if (i > 0 && (start <= t.version_runs[i - 1].start || start >= total)) {
      return wrong(
          at("version_runs", i) + ".start", std::to_string(start),
          std::to_string(t.version_runs[i - 1].start + 1) + ".." + std::to_string(total - 1));
    }
  }
  return {};
}

Status check_events(const Trajectory& t) {
  const int32_t total = static_cast<int32_t>(t.token_ids.size());
  int32_t low = t.prompt_len;
  for (size_t i = 0; i < t.events.size(); ++i) {
    const TrajectoryEvent& event = t.events[i];
    if (event.kind > EventKind::kPreemptRecompute) {
      return wrong(at("events", i) + ".kind", std::to_string(static_cast<int>(event.kind)), "0..2");
    }
    if (event.at_token < low || event.at_token > total) {  // == T: ended before the next token
      return wrong(at("events", i) + ".at_token", std::to_string(event.at_token),
                   std::to_string(low) + ".." + std::to_string(total));
    }
    low = event.at_token;
  }
  for (size_t i = 1; i < t.version_runs.size(); ++i) {
    const VersionRun& run = t.version_runs[i];
    const bool explained = std::any_of(t.events.begin(), t.events.end(), [&](const auto& event) {
      return event.at_token == run.start && event.weight_version == run.weight_version &&
             event.kind != EventKind::kPreemptRecompute;
    });
    if (explained) continue;
    return invalid_argument(at("version_runs", i) + " changes to weight_version " +
                            std::to_string(run.weight_version) + " at token " +
                            std::to_string(run.start) +
                            " without an event, wanted flip_keep or flip_recompute there");
  }
  return {};
}

Status check_digests(const Trajectory& t) {
  std::set<uint64_t> known;
  for (size_t i = 0; i < t.version_digests.size(); ++i) {
    const VersionDigest& digest = t.version_digests[i];
    if (digest.weight_digest == Digest{}) {
      return wrong(at("version_digests", i) + ".weight_digest", "all zero", "a digest");
    }
    if (!known.insert(digest.weight_version).second) {
      return wrong(at("version_digests", i) + ".weight_version",
                   std::to_string(digest.weight_version) + " again", "each version once");
    }
  }
  const auto missing = [&](const char* name, size_t index, uint64_t version) {
    if (known.contains(version)) return Status{};
    return invalid_argument(at(name, index) + " has weight_version " + std::to_string(version) +
                            " without a digest, wanted one in version_digests");
  };
  for (size_t i = 0; i < t.version_runs.size(); ++i) {
    WARPROLL_TRY(missing("version_runs", i, t.version_runs[i].weight_version));
  }
  for (size_t i = 0; i < t.events.size(); ++i) {
    WARPROLL_TRY(missing("events", i, t.events[i].weight_version));
  }
  return {};
}

Status check_routes(const Trajectory& t) {
  if (!t.routed_experts) return {};
  const RoutedExperts& routes = *t.routed_experts;
  const int64_t want_tokens = static_cast<int64_t>(t.token_ids.size()) - 1;
  if (want_tokens < 0 || routes.num_tokens != want_tokens) {
    return wrong("Trajectory.routed_experts.num_tokens", std::to_string(routes.num_tokens),
                 std::to_string(want_tokens) + " (T - 1)");
  }
  if (routes.num_layers < 1 || routes.top_k < 1) {
    return wrong("Trajectory.routed_experts.num_layers x top_k",
                 std::to_string(routes.num_layers) + " x " + std::to_string(routes.top_k),
                 ">= 1 each");
  }
  if (routes.bytes_per_id != 1 && routes.bytes_per_id != 2) {
    return wrong("Trajectory.routed_experts.bytes_per_id", std::to_string(routes.bytes_per_id),
                 "1 or 2");
  }
  // 31 + 31 + 31 + 1 bits may exceed 64, so divide instead of multiplying.
  const uint64_t a_token = static_cast<uint64_t>(routes.num_layers) *
                           static_cast<uint64_t>(routes.top_k) * routes.bytes_per_id;
  const uint64_t got = routes.data.size();
  if (got % a_token != 0 || got / a_token != static_cast<uint64_t>(want_tokens)) {
    return invalid_argument("Trajectory.routed_experts.data has " + std::to_string(got) +
                            " bytes, wanted " + std::to_string(want_tokens) + " x " +
                            std::to_string(a_token) + " (tokens x layers x top_k x bytes_per_id)");
  }
  return {};
}

Status check_spans(const Trajectory& t) {
  const int32_t total = static_cast<int32_t>(t.token_ids.size());
  int32_t low = 0;
  for (size_t i = 0; i < t.role_spans.size(); ++i) {
    const RoleSpan& span = t.role_spans[i];
    if (span.role > Role::kTool) return wrong(at("role_spans", i) + ".role", "unknown", "0..3");
    if (span.start < low || span.end <= span.start || span.end > total) {
      return wrong(
          at("role_spans", i),
          "[" + std::to_string(span.start) + ", " + std::to_string(span.end) + ")",
          "a non-empty span within [" + std::to_string(low) + ", " + std::to_string(total) + ")");
    }
    low = span.end;
  }
  return {};
}

Status check_outcome(const Trajectory& t) {
  if (t.finish_reason > FinishReason::kError) {
    return wrong("Trajectory.finish_reason", std::to_string(static_cast<int>(t.finish_reason)),
                 "0..3");
  }
  WARPROLL_TRY(check_utf8("Trajectory.text", t.text));
  WARPROLL_TRY(check_utf8("Trajectory.error_type", t.error_type));
  WARPROLL_TRY(check_utf8("Trajectory.error_message", t.error_message));
  if (t.error_type.empty() == ended_early(t)) {
    return invalid_argument("Trajectory.error_type is '" + t.error_type + "' with finish_reason " +
                            std::string(to_string(t.finish_reason)) +
                            ", wanted it set with abort and error and empty otherwise");
  }
  if (!t.reward) return {};
  if (!std::isfinite(t.reward->total)) {
    return wrong("Trajectory.reward.total", std::to_string(t.reward->total), "finite");
  }
  for (const auto& [name, value] : t.reward->components) {
    WARPROLL_TRY(check_utf8("Trajectory.reward component", name));
    if (std::isfinite(value)) continue;
    return wrong("Trajectory.reward component '" + name + "'", std::to_string(value), "finite");
  }
  return {};
}

Status check_provenance(const Trajectory& t) {
  WARPROLL_TRY(validate(t.sampling).with_context("Trajectory.sampling"));
  if (t.in_flight > InFlightPolicy::kPin) {
    return wrong("Trajectory.in_flight", std::to_string(static_cast<int>(t.in_flight)), "0..3");
  }
  const auto& times = t.timings;
  for (const int64_t ns :
       {times.task_received_ns, times.admitted_ns, times.first_token_ns, times.sealed_ns}) {
    if (ns < 0) return wrong("Trajectory.timings", std::to_string(ns) + " ns", ">= 0");
  }
  WARPROLL_TRY(check_utf8("Trajectory.model", t.model));
  WARPROLL_TRY(check_utf8("Trajectory.engine_version", t.engine_version));
  if (t.activation_dtype != "f32" && t.activation_dtype != "bf16" && t.activation_dtype != "f16") {
    WARPROLL_TRY(check_utf8("Trajectory.activation_dtype", t.activation_dtype));
    return wrong("Trajectory.activation_dtype", "'" + t.activation_dtype + "'", "f32, bf16 or f16");
  }
  return {};
}

}  // namespace

Status validate(const Trajectory& trajectory, int32_t vocab_size) {
  WARPROLL_TRY(check_identity(trajectory));
  WARPROLL_TRY(check_lengths(trajectory));
  WARPROLL_TRY(check_ids("Trajectory.token_ids", trajectory.token_ids, vocab_size));
  WARPROLL_TRY(check_mask(trajectory));
  WARPROLL_TRY(check_logs(trajectory, "logprobs", trajectory.logprobs));
  WARPROLL_TRY(check_logs(trajectory, "raw_logprobs", trajectory.raw_logprobs));
  WARPROLL_TRY(check_logs(trajectory, "support_logmass", trajectory.support_logmass));
  WARPROLL_TRY(check_runs(trajectory));
  WARPROLL_TRY(check_events(trajectory));
  WARPROLL_TRY(check_digests(trajectory));
  WARPROLL_TRY(check_routes(trajectory));
  WARPROLL_TRY(check_spans(trajectory));
  WARPROLL_TRY(check_outcome(trajectory));
  return check_provenance(trajectory);
}

}  // namespace warproll
