#include "rollout/sample_log/trajectory_json.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <span>
#include <type_traits>

#include "protocol/utf8.h"

namespace warproll {
namespace {

// Length of the well-formed UTF-8 character at the front of `text`, 0 = none.
size_t utf8_length(std::string_view text) {
  for (size_t length = 1; length <= 4 && length <= text.size(); ++length) {
    if (is_valid_utf8(text.substr(0, length))) return length;
  }
  return 0;
}

std::string base64(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = static_cast<uint32_t>(bytes[i]) << 16;
    if (i + 1 < bytes.size()) group |= static_cast<uint32_t>(bytes[i + 1]) << 8;
    if (i + 2 < bytes.size()) group |= bytes[i + 2];
    out.push_back(kDigits[group >> 18]);
    out.push_back(kDigits[group >> 12 & 63]);
    out.push_back(i + 1 < bytes.size() ? kDigits[group >> 6 & 63] : '=');
    out.push_back(i + 2 < bytes.size() ? kDigits[group & 63] : '=');
  }
  return out;
}

class JsonLine {
 public:
  void open(char bracket) {
    separate();
    out_.push_back(bracket);
    first_ = true;
  }
  void close(char bracket) {
    out_.push_back(bracket);
    first_ = false;
  }
  void key(std::string_view name) {
    separate();
    out_.push_back('"');
    out_.append(name);
    out_.append("\":");
    first_ = true;  // the value needs no comma
    name_ = name;
  }
  // The same for every field: key and value in one.
  template <typename T>
  void field(std::string_view name, const T& value_of_field) {
    key(name);
    value(value_of_field);
  }
  template <typename T>
  void fields(std::string_view name, const std::vector<T>& values) {
    key(name);
    open('[');
    for (size_t i = 0; i < values.size(); ++i) {
      index_ = static_cast<int64_t>(i);
      value(values[i]);
    }
    index_ = -1;
    close(']');
  }

  void value(bool flag) { raw(flag ? "true" : "false"); }
  void value(std::string_view text) {
    separate();
    quote(text);
  }
  void value(const std::string& text) { value(std::string_view(text)); }
  void value(const char* text) { value(std::string_view(text)); }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void value(T number) {
    if constexpr (std::is_floating_point_v<T>) {
      if (!std::isfinite(number)) {
        non_finite_.emplace_back(name_, index_);
        raw("null");
        return;
      }
    }
    char text[48];
    const auto end = std::to_chars(text, text + sizeof(text), number);
    raw(std::string_view(text, static_cast<size_t>(end.ptr - text)));
  }
  void null() { raw("null"); }

  [[nodiscard]] const std::vector<std::pair<std::string, int64_t>>& non_finite() const {
    return non_finite_;
  }
  [[nodiscard]] const std::vector<std::string>& invalid_utf8() const { return invalid_utf8_; }
  std::string take() { return std::move(out_); }

 private:
  void separate() {
    if (!first_) out_.push_back(',');
    first_ = false;
  }
  void raw(std::string_view text) {
    separate();
    out_.append(text);
  }
  void quote(std::string_view text) {
    out_.push_back('"');
    bool valid = true;
    while (!text.empty()) {
      const size_t length = utf8_length(text);
      if (length == 0) {
        out_.append("\xEF\xBF\xBD");  // U+FFFD
        valid = false;
        text.remove_prefix(1);
      } else {
        escape(text.substr(0, length));
        text.remove_prefix(length);
      }
    }
    out_.push_back('"');
    if (!valid && (invalid_utf8_.empty() || invalid_utf8_.back() != name_)) {
      invalid_utf8_.push_back(name_);
    }
  }
  void escape(std::string_view character) {
    const auto byte = static_cast<unsigned char>(character[0]);
    if (byte == '"' || byte == '\\') {
      out_.push_back('\\');
      out_.append(character);
    } else if (byte == '\n') {
      out_.append("\\n");
    } else if (byte < 0x20 || byte == 0x7f) {
      char text[8];
      std::snprintf(text, sizeof(text), "\\u%04x", byte);
      out_.append(text);
    } else {
      out_.append(character);
    }
  }

  std::string out_;
  bool first_ = true;
  std::string name_;  // of the field being written
  int64_t index_ = -1;
  std::vector<std::pair<std::string, int64_t>> non_finite_;
  std::vector<std::string> invalid_utf8_;
};

void put_identity(const Trajectory& t, JsonLine& json) {
  json.field("trajectory_id", t.trajectory_id);
  json.field("producer_id", to_hex(t.producer_id));
  json.field("epoch", t.epoch);
  json.field("seq", t.seq);
  json.field("task_id", t.task_id);
  json.field("group_id", t.group_id);
  json.field("sample_index", t.sample_index);
}

void put_tokens(const Trajectory& t, JsonLine& json) {
  json.field("text", t.text);
  json.field("finish_reason", to_string(t.finish_reason));
  json.field("prompt_len", t.prompt_len);
  json.fields("token_ids", t.token_ids);
  json.fields("loss_mask", t.loss_mask);
  json.fields("logprobs", t.logprobs);
  json.fields("raw_logprobs", t.raw_logprobs);
  json.fields("support_logmass", t.support_logmass);
}

void put_versions(const Trajectory& t, JsonLine& json) {
  json.key("version_runs");
  json.open('[');
  for (const VersionRun& run : t.version_runs) {
    json.open('{');
    json.field("start", run.start);
    json.field("weight_version", run.weight_version);
    json.close('}');
  }
  json.close(']');
  json.key("version_digests");
  json.open('[');
  for (const VersionDigest& version : t.version_digests) {
    json.open('{');
    json.field("weight_version", version.weight_version);
    json.field("weight_digest", to_hex(version.weight_digest));
    json.close('}');
  }
  json.close(']');
  json.key("events");
  json.open('[');
  for (const TrajectoryEvent& event : t.events) {
    json.open('{');
    json.field("at_token", event.at_token);
    json.field("kind", to_string(event.kind));
    json.field("weight_version", event.weight_version);
    json.close('}');
  }
  json.close(']');
}

void put_routes_and_roles(const Trajectory& t, JsonLine& json) {
  json.key("routed_experts");
  if (t.routed_experts) {
    json.open('{');
    json.field("num_tokens", t.routed_experts->num_tokens);
    json.field("num_layers", t.routed_experts->num_layers);
    json.field("top_k", t.routed_experts->top_k);
    json.field("bytes_per_id", t.routed_experts->bytes_per_id);
    json.field("base64", base64(t.routed_experts->data));
    json.close('}');
  } else {
    json.null();
  }
  json.key("role_spans");
  json.open('[');
  for (const RoleSpan& span : t.role_spans) {
    json.open('{');
    json.field("start", span.start);
    json.field("end", span.end);
    json.field("role", to_string(span.role));
    json.close('}');
  }
  json.close(']');
}

void put_reward(const Trajectory& t, JsonLine& json) {
  json.key("reward");
  if (!t.reward) {
    json.null();  // absent is not 0
    return;
  }
  json.open('{');
  json.field("total", t.reward->total);
  json.key("components");
  json.open('[');
  for (const auto& [name, component] : t.reward->components) {
    json.open('{');
    json.field("name", name);
    json.field("value", component);
    json.close('}');
  }
  json.close(']');
  json.close('}');
}

void put_sampling(const SamplingParams& sampling, JsonLine& json) {
  json.key("sampling");
  json.open('{');
  json.field("temperature", sampling.temperature);
  json.field("top_p", sampling.top_p);
  json.field("top_k", sampling.top_k);
  json.field("min_p", sampling.min_p);
  json.field("max_tokens", sampling.max_tokens);
  json.fields("stop_token_ids", sampling.stop_token_ids);
  json.fields("stop_strings", sampling.stop_strings);
  json.field("ignore_eos", sampling.ignore_eos);
  json.field("seed", sampling.seed);
  json.close('}');
}

void put_origin(const Trajectory& t, JsonLine& json) {
  json.field("error_type", t.error_type);
  json.field("error_message", t.error_message);
  put_sampling(t.sampling, json);
  json.field("in_flight", to_string(t.in_flight));
  json.key("timings");
  json.open('{');
  json.field("task_received_ns", t.timings.task_received_ns);
  json.field("admitted_ns", t.timings.admitted_ns);
  json.field("first_token_ns", t.timings.first_token_ns);
  json.field("sealed_ns", t.timings.sealed_ns);
  json.close('}');
  json.field("model", t.model);
  json.field("activation_dtype", t.activation_dtype);
  json.field("tokenizer_digest", to_hex(t.tokenizer_digest));
  json.field("engine_version", t.engine_version);
  json.field("metadata", t.metadata);
}

// What could not be said in JSON; the keys are there only when there is something.
void put_losses(JsonLine& json) {
  const auto non_finite = json.non_finite();
  if (!non_finite.empty()) {
    json.key("non_finite");
    json.open('[');
    for (const auto& [name, index] : non_finite) {
      json.open('[');
      json.value(name);
      if (index >= 0) json.value(index);
      json.close(']');
    }
    json.close(']');
  }
  const auto invalid = json.invalid_utf8();
  if (!invalid.empty()) json.fields("invalid_utf8", invalid);
}

}  // namespace

std::string trajectory_to_json(const Trajectory& trajectory) {
  JsonLine json;
  json.open('{');
  put_identity(trajectory, json);
  put_tokens(trajectory, json);
  put_versions(trajectory, json);
  put_routes_and_roles(trajectory, json);
  put_reward(trajectory, json);
  put_origin(trajectory, json);
  put_losses(json);
  json.close('}');
  return json.take();
}

}  // namespace warproll
