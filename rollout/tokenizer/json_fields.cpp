#include "rollout/tokenizer/json_fields.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "protocol/strict_json.h"

namespace warproll {

using nlohmann::json;

Status json_mismatch(std::string_view path, const json& got, std::string_view wanted) {
  return invalid_argument(std::string(path) + " is " + describe_json(got) + ", wanted " +
                          std::string(wanted));
}

Result<JsonFields> JsonFields::of(const json& object, std::string path) {
  if (!object.is_object()) {
    return json_mismatch(path.empty() ? "the file's value" : path, object, "an object");
  }
  return JsonFields(object, std::move(path));
}

std::string JsonFields::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

const json& JsonFields::field(const char* key) const {
  static const json kNull;
  const auto found = object_->find(key);
  return found == object_->end() ? kNull : *found;
}

Result<bool> JsonFields::boolean(const char* key) const {
  const json& value = field(key);
  if (!value.is_boolean()) return json_mismatch(path_of(key), value, "true or false");
  return value.get<bool>();
}

Result<bool> JsonFields::boolean_or(const char* key, bool missing) const {
  return field(key).is_null() ? Result<bool>(missing) : boolean(key);
}

Result<std::string> JsonFields::string(const char* key) const {
  const json& value = field(key);
  if (!value.is_string()) return json_mismatch(path_of(key), value, "a string");
  return value.get<std::string>();
}

Result<JsonFields> JsonFields::object(const char* key) const {
  return of(field(key), path_of(key));
}

Status JsonFields::require_array(const char* key) const {
  const json& value = field(key);
  return value.is_array() ? ok_status() : json_mismatch(path_of(key), value, "an array");
}

Status JsonFields::require_false(const char* key) const {
  WARPROLL_TRY_ASSIGN(value, boolean_or(key, false));
  if (value) return json_mismatch(path_of(key), field(key), "false (the other is not supported)");
  return ok_status();
}

}  // namespace warproll
