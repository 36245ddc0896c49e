#include "protocol/records.h"

#include <cmath>
#include <set>

#include "protocol/record_checks.h"

namespace warproll {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";
constexpr size_t kMaxStopStringBytes = 1024;

Status check_unique_indices(const Task& task) {
  std::set<int32_t> seen;
  for (const int32_t index : task.sample_indices) {
    if (index < 0 || index >= task.group_size) {
      return invalid_argument("Task.sample_indices has " + std::to_string(index) + ", wanted 0.." +
                              std::to_string(task.group_size - 1));
    }
    if (!seen.insert(index).second) {
      return invalid_argument("Task.sample_indices has " + std::to_string(index) +
                              " twice, wanted each at most once");
    }
  }
  return {};
}

Status check_prompt(const Task& task) {
  const int forms =
      int{!task.prompt_ids.empty()} + int{!task.prompt_text.empty()} + int{!task.messages.empty()};
  if (forms != 1) {
    return invalid_argument("Task has " + std::to_string(forms) +
                            " prompts, wanted exactly one of prompt_ids, prompt_text, messages");
  }
  WARPROLL_TRY(check_ids("Task.prompt_ids", task.prompt_ids, 0));
  WARPROLL_TRY(check_utf8("Task.prompt_text", task.prompt_text));
  for (size_t i = 0; i < task.messages.size(); ++i) {
    const std::string name = "Task.messages[" + std::to_string(i) + "]";
    if (task.messages[i].role > Role::kTool) return invalid_argument(name + ".role is unknown");
    WARPROLL_TRY(check_utf8(name + ".content", task.messages[i].content));
  }
  return {};
}

}  // namespace

std::string to_hex(const Digest& digest) {
  std::string hex;
  hex.reserve(2 * digest.size());
  for (const uint8_t byte : digest) {
    hex += kHexDigits[byte >> 4];
    hex += kHexDigits[byte & 15];
  }
  return hex;
}

Result<Digest> digest_from_hex(std::string_view hex) {
  Digest digest{};
  if (hex.size() != 2 * digest.size()) {
    return invalid_argument("digest has " + std::to_string(hex.size()) +
                            " characters, wanted 32 hex digits");
  }
  const auto nibble = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  for (size_t i = 0; i < digest.size(); ++i) {
    const int high = nibble(hex[2 * i]);
    const int low = nibble(hex[2 * i + 1]);
    if (high < 0 || low < 0) {
      return invalid_argument("digest '" + std::string(hex) + "' has a character at " +
                              std::to_string(2 * i + (high < 0 ? 0 : 1)) +
                              " that is no hex digit, wanted 32 hex digits");
    }
    digest[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return digest;
}

std::string_view to_string(InFlightPolicy policy) {
  switch (policy) {
    case InFlightPolicy::kKeep:
      return "keep";
    case InFlightPolicy::kRecompute:
      return "recompute";
    case InFlightPolicy::kAbort:
      return "abort";
    case InFlightPolicy::kPin:
      return "pin";
  }
  return "unknown";
}

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

std::string_view to_string(EventKind kind) {
  switch (kind) {
    case EventKind::kFlipKeep:
      return "flip_keep";
    case EventKind::kFlipRecompute:
      return "flip_recompute";
    case EventKind::kPreemptRecompute:
      return "preempt_recompute";
  }
  return "unknown";
}

std::string_view to_string(Role role) {
  switch (role) {
    case Role::kSystem:
      return "system";
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
    case Role::kTool:
      return "tool";
  }
  return "unknown";
}

Result<InFlightPolicy> in_flight_policy_from(std::string_view text) {
  for (const auto policy : {InFlightPolicy::kKeep, InFlightPolicy::kRecompute,
                            InFlightPolicy::kAbort, InFlightPolicy::kPin}) {
    if (text == to_string(policy)) return policy;
  }
  return invalid_argument("in_flight is '" + std::string(text) +
                          "', wanted keep, recompute, abort or pin");
}

Status validate(const SamplingParams& sampling) {
  const auto bad = [](const char* name, auto value, const char* wanted) {
    return invalid_argument(std::string("SamplingParams.") + name + " is " + std::to_string(value) +
                            ", wanted " + wanted);
  };
  // Negated comparisons, so that NaN is refused too.
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0.0f) {
    return bad("temperature", sampling.temperature, "a finite number >= 0");
  }
  if (!(sampling.top_p > 0.0f && sampling.top_p <= 1.0f)) {
    return bad("top_p", sampling.top_p, "more than 0 and at most 1");
  }
  if (sampling.top_k < 0) return bad("top_k", sampling.top_k, ">= 0 (0 = off)");
  if (!(sampling.min_p >= 0.0f && sampling.min_p <= 1.0f)) {
    return bad("min_p", sampling.min_p, "0..1");
  }
  if (sampling.max_tokens < 1) return bad("max_tokens", sampling.max_tokens, ">= 1");
  WARPROLL_TRY(check_ids("SamplingParams.stop_token_ids", sampling.stop_token_ids, 0));
  for (size_t i = 0; i < sampling.stop_strings.size(); ++i) {
    const std::string name = "SamplingParams.stop_strings[" + std::to_string(i) + "]";
    WARPROLL_TRY(check_text(name, sampling.stop_strings[i], kMaxStopStringBytes));
  }
  return {};
}

Status validate(const Task& task) {
  WARPROLL_TRY(check_text("Task.task_id", task.task_id, kMaxIdBytes));
  if (!task.group_id.empty()) {
    WARPROLL_TRY(check_text("Task.group_id", task.group_id, kMaxIdBytes));
  }
  if (task.group_size < 1 || task.group_size > kMaxGroupSize) {
    return invalid_argument("Task.group_size is " + std::to_string(task.group_size) +
                            ", wanted 1.." + std::to_string(kMaxGroupSize));
  }
  WARPROLL_TRY(check_prompt(task));
  WARPROLL_TRY(validate(task.sampling).with_context("Task.sampling"));
  WARPROLL_TRY(check_utf8("Task.env", task.env));
  if (task.env != "single_turn") {
    return invalid_argument("unknown env '" + task.env + "', known: single_turn");
  }
  if (task.in_flight > InFlightPolicy::kPin) {
    return invalid_argument("Task.in_flight is " +
                            std::to_string(static_cast<int>(task.in_flight)) + ", wanted 0..3");
  }
  return check_unique_indices(task);
}

}  // namespace warproll
