#include "rollout/model/config_fields.h"

#include <sstream>

namespace warproll {
namespace {

using nlohmann::json;

const json& empty_object() {
  static const json empty = json::object();
  return empty;
}

// Values from outside are shown cut, and containers by kind: a config may hold anything.
std::string shown(const json& value) {
  constexpr size_t kLongest = 80;
  if (value.is_array()) return "a list of " + std::to_string(value.size());
  if (value.is_object()) return "an object";
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

std::string plain(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

}  // namespace

ConfigFields::ConfigFields(const json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object_.is_object()) fail("is " + shown(object_) + ", wanted an object");
}

const json* ConfigFields::find(const char* key) const {
  if (!object_.is_object()) return nullptr;
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool ConfigFields::has(const char* key) const { return find(key) != nullptr; }

void ConfigFields::fail(const std::string& problem) {
  if (status_.ok()) status_ = invalid_argument(where_ + ": " + problem);
}

void ConfigFields::wrong(const char* key, const json& value, const std::string& wanted) {
  fail(std::string(key) + " is " + shown(value) + ", wanted " + wanted);
}

std::optional<int32_t> ConfigFields::as_integer(const char* key, const json& value, int32_t low,
                                                int32_t high) {
  const std::string wanted =
      "an integer from " + std::to_string(low) + " to " + std::to_string(high);
  const bool unsigned_too_large =
      value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT32_MAX);
  if (!value.is_number_integer() || unsigned_too_large || value.get<int64_t>() < low ||
      value.get<int64_t>() > high) {
    wrong(key, value, wanted);
    return std::nullopt;
  }
  return value.get<int32_t>();
}

int32_t ConfigFields::integer(const char* key, int32_t low, int32_t high,
                              std::optional<int32_t> fallback) {
  const json* value = find(key);
  if (value != nullptr) return as_integer(key, *value, low, high).value_or(low);
  if (!fallback) {
    fail(std::string(key) + " is missing, wanted an integer from " + std::to_string(low) + " to " +
         std::to_string(high));
  }
  return fallback.value_or(low);
}

double ConfigFields::number(const char* key, double low, double high,
                            std::optional<double> fallback) {
  const std::string wanted = "a number from " + plain(low) + " to " + plain(high);
  const json* value = find(key);
  if (value == nullptr) {
    if (!fallback) fail(std::string(key) + " is missing, wanted " + wanted);
    return fallback.value_or(low);
  }
  if (!value->is_number() || !(value->get<double>() >= low) || !(value->get<double>() <= high)) {
    wrong(key, *value, wanted);
    return low;
  }
  return value->get<double>();
}

bool ConfigFields::boolean(const char* key, bool fallback) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) wrong(key, *value, "true or false");
  return value->is_boolean() ? value->get<bool>() : fallback;
}

std::string ConfigFields::text(const char* key, const std::string& fallback) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) wrong(key, *value, "a string");
  return value->is_string() ? value->get<std::string>() : fallback;
}

std::vector<int32_t> ConfigFields::integers(const char* key, int32_t low, int32_t high,
                                            bool or_one) {
  const json* value = find(key);
  std::vector<int32_t> result;
  if (value == nullptr) return result;
  if (or_one && value->is_number()) {
    if (const auto one = as_integer(key, *value, low, high)) result.push_back(*one);
    return result;
  }
  if (!value->is_array()) {
    wrong(key, *value, or_one ? "an integer or a list of integers" : "a list of integers");
    return result;
  }
  for (const json& element : *value) {
    const auto one = as_integer(key, element, low, high);
    if (!one) return {};
    result.push_back(*one);
  }
  return result;
}

const json& ConfigFields::object(const char* key) {
  const json* value = find(key);
  if (value == nullptr) return empty_object();
  if (value->is_object()) return *value;
  wrong(key, *value, "an object");
  return empty_object();
}

}  // namespace warproll
