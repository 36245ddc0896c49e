#include "worker/trainer/task_json.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "protocol/strict_json.h"

namespace warproll {
namespace {

using nlohmann::json;

std::string short_text(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

Status wrong(std::string_view key, const json& value, std::string_view wanted) {
  return invalid_argument(std::string(key) + " is " + short_text(value) + ", wanted " +
                          std::string(wanted));
}

template <typename Integer>
Status read_integer(std::string_view key, const json& value, Integer& field) {
  const bool fits =
      value.is_number_unsigned()
          ? value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<Integer>::max())
          : value.is_number_integer() && std::numeric_limits<Integer>::is_signed &&
                value.get<int64_t>() >= static_cast<int64_t>(std::numeric_limits<Integer>::min());
  if (!fits) {
    return wrong(key, value,
                 "a whole number up to " + std::to_string(std::numeric_limits<Integer>::max()));
  }
  field = value.get<Integer>();
  return ok_status();
}

Status read_number(std::string_view key, const json& value, float& field) {
  if (!value.is_number()) return wrong(key, value, "a number");
  field = value.get<float>();
  return ok_status();
}

Status read_text(std::string_view key, const json& value, std::string& field) {
  if (!value.is_string()) return wrong(key, value, "text");
  field = value.get<std::string>();
  return ok_status();
}

Status read_flag(std::string_view key, const json& value, bool& field) {
  if (!value.is_boolean()) return wrong(key, value, "true or false");
  field = value.get<bool>();
  return ok_status();
}

Status read_ids(std::string_view key, const json& value, std::vector<int32_t>& field) {
  if (!value.is_array()) return wrong(key, value, "a list of whole numbers");
  field.clear();
  for (const json& item : value) {
    int32_t id = 0;
    WARPROLL_TRY(read_integer(key, item, id));
    field.push_back(id);
  }
  return ok_status();
}

Status read_stop(const json& value, SamplingParams& sampling) {
  if (!value.is_array()) return wrong("sampling.stop", value, "a list of texts");
  sampling.stop_strings.clear();
  for (const json& item : value) {
    if (!item.is_string()) return wrong("sampling.stop", item, "text");
    sampling.stop_strings.push_back(item.get<std::string>());
  }
  return ok_status();
}

Status read_sampling(const json& object, SamplingParams& sampling) {
  if (!object.is_object()) return wrong("sampling", object, "an object");
  for (const auto& [key, value] : object.items()) {
    const std::string path = "sampling." + key;
    Status status;
    if (key == "temperature") {
      status = read_number(path, value, sampling.temperature);
    } else if (key == "top_p") {
      status = read_number(path, value, sampling.top_p);
    } else if (key == "min_p") {
      status = read_number(path, value, sampling.min_p);
    } else if (key == "top_k") {
      status = read_integer(path, value, sampling.top_k);
    } else if (key == "max_tokens") {
      status = read_integer(path, value, sampling.max_tokens);
    } else if (key == "seed") {
      status = read_integer(path, value, sampling.seed);
    } else if (key == "ignore_eos") {
      status = read_flag(path, value, sampling.ignore_eos);
    } else if (key == "stop") {
      status = read_stop(value, sampling);
    } else if (key == "stop_token_ids") {
      status = read_ids(path, value, sampling.stop_token_ids);
    } else {
      status = invalid_argument("unknown key " + path +
                                ", known: temperature top_p top_k min_p max_tokens seed "
                                "ignore_eos stop stop_token_ids");
    }
    WARPROLL_TRY(status);
  }
  return ok_status();
}

Result<Role> role_from(const json& value) {
  for (const Role role : {Role::kSystem, Role::kUser, Role::kAssistant, Role::kTool}) {
    if (value.is_string() && value.get<std::string>() == to_string(role)) return role;
  }
  return wrong("messages.role", value, "system, user, assistant or tool");
}

Status read_messages(const json& list, Task& task) {
  if (!list.is_array()) return wrong("messages", list, "a list of {role, content}");
  task.messages.clear();
  for (const json& item : list) {
    if (!item.is_object() || item.size() != 2 || !item.contains("role") ||
        !item.contains("content")) {
      return wrong("messages", item, "{\"role\": ..., \"content\": ...}");
    }
    ChatMessage message;
    WARPROLL_TRY_ASSIGN(role, role_from(item["role"]));
    message.role = role;
    WARPROLL_TRY(read_text("messages.content", item["content"], message.content));
    task.messages.push_back(std::move(message));
  }
  return ok_status();
}

Status read_key(const std::string& key, const json& value, Task& task) {
  if (key == "task_id") return read_text(key, value, task.task_id);
  if (key == "group_id") return read_text(key, value, task.group_id);
  if (key == "group_size") return read_integer(key, value, task.group_size);
  if (key == "prompt") return read_text(key, value, task.prompt_text);
  if (key == "prompt_ids") return read_ids(key, value, task.prompt_ids);
  if (key == "messages") return read_messages(value, task);
  if (key == "sampling") return read_sampling(value, task.sampling);
  if (key == "env") return read_text(key, value, task.env);
  if (key == "deadline_ms") return read_integer(key, value, task.deadline_ms);
  if (key == "return_routes") return read_flag(key, value, task.return_routes);
  if (key == "in_flight") {
    std::string name;
    WARPROLL_TRY(read_text(key, value, name));
    WARPROLL_TRY_ASSIGN(policy, in_flight_policy_from(name));
    task.in_flight = policy;
    return ok_status();
  }
  if (key == "answer") {
    std::string answer;
    WARPROLL_TRY(read_text(key, value, answer));
    task.metadata = json{{"answer", answer}}.dump();
    return ok_status();
  }
  if (key == "metadata") {
    task.metadata = value.is_string() ? value.get<std::string>() : value.dump();
    return ok_status();
  }
  return invalid_argument("unknown key " + key +
                          ", known: task_id group_id group_size prompt prompt_ids messages "
                          "sampling env in_flight deadline_ms return_routes answer metadata");
}

}  // namespace

Result<Task> task_from_json(std::string_view text, const Task& defaults) {
  WARPROLL_TRY_ASSIGN(object, parse_strict_json(text));
  if (!object.is_object()) return wrong("the line", object, "a JSON object");
  if (object.contains("answer") && object.contains("metadata")) {
    return invalid_argument("answer and metadata are both given, wanted one of them");
  }
  Task task = defaults;
  for (const auto& [key, value] : object.items()) WARPROLL_TRY(read_key(key, value, task));
  return task;
}

}  // namespace warproll
