#include "rollout/model/config_fields.h"

#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "protocol/strict_json.h"

namespace warproll {

struct ConfigNode {
  std::shared_ptr<const nlohmann::json> root;
  const nlohmann::json* object;
};

namespace {

using nlohmann::json;

// Null and absent are the same.
const json* find(const ConfigNode& node, const char* key) {
  const auto it = node.object->find(key);
  return it == node.object->end() || it->is_null() ? nullptr : &*it;
}

std::shared_ptr<const ConfigNode> child(const ConfigNode& parent, const json& object) {
  return std::make_shared<ConfigNode>(ConfigNode{parent.root, &object});
}

std::shared_ptr<const ConfigNode> empty_node() {
  auto root = std::make_shared<const json>(json::object());
  return std::make_shared<ConfigNode>(ConfigNode{root, root.get()});
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

std::string wrong(const std::string& key, const json& value, const std::string& wanted) {
  return key + " is " + shown(value) + ", wanted " + wanted;
}

std::string plain(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

std::string integer_text(int32_t low, int32_t high) {
  return "an integer from " + std::to_string(low) + " to " + std::to_string(high);
}

std::optional<int32_t> as_integer(const json& value, int32_t low, int32_t high) {
  const bool unsigned_too_large =
      value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT32_MAX);
  if (!value.is_number_integer() || unsigned_too_large || value.get<int64_t>() < low ||
      value.get<int64_t>() > high) {
    return std::nullopt;
  }
  return value.get<int32_t>();
}

}  // namespace

Result<ConfigFields> ConfigFields::parse(std::string_view text, const std::string& file) {
  WARPROLL_TRY_ASSIGN(parsed, parse_strict_json(text, file));
  const auto root = std::make_shared<const json>(std::move(parsed));
  if (!root->is_object()) {
    return invalid_argument(file + ": is " + shown(*root) + ", wanted an object");
  }
  return ConfigFields(std::make_shared<ConfigNode>(ConfigNode{root, root.get()}), file);
}

bool ConfigFields::has(const char* key) const { return find(*node_, key) != nullptr; }

void ConfigFields::fail(const std::string& problem) {
  if (status_.ok()) status_ = invalid_argument(where_ + ": " + problem);
}

int32_t ConfigFields::integer(const char* key, int32_t low, int32_t high,
                              std::optional<int32_t> fallback) {
  const json* value = find(*node_, key);
  if (value == nullptr) {
    if (!fallback) fail(std::string(key) + " is missing, wanted " + integer_text(low, high));
    return fallback.value_or(low);
  }
  const auto result = as_integer(*value, low, high);
  if (!result) fail(wrong(key, *value, integer_text(low, high)));
  return result.value_or(low);
}

double ConfigFields::number(const char* key, double low, double high,
                            std::optional<double> fallback) {
  const std::string wanted = "a number from " + plain(low) + " to " + plain(high);
  const json* value = find(*node_, key);
  if (value == nullptr) {
    if (!fallback) fail(std::string(key) + " is missing, wanted " + wanted);
    return fallback.value_or(low);
  }
  if (!value->is_number() || !(value->get<double>() >= low) || !(value->get<double>() <= high)) {
    fail(wrong(key, *value, wanted));
    return low;
  }
  return value->get<double>();
}

bool ConfigFields::boolean(const char* key, bool fallback) {
  const json* value = find(*node_, key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) fail(wrong(key, *value, "true or false"));
  return value->is_boolean() ? value->get<bool>() : fallback;
}

std::string ConfigFields::text(const char* key, const std::string& fallback) {
  const json* value = find(*node_, key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) fail(wrong(key, *value, "a string"));
  return value->is_string() ? value->get<std::string>() : fallback;
}

std::vector<int32_t> ConfigFields::integers(const char* key, int32_t low, int32_t high,
                                            bool or_one) {
  const json* value = find(*node_, key);
  std::vector<int32_t> result;
  if (value == nullptr) return result;
  const bool one = or_one && value->is_number();
  if (!one && !value->is_array()) {
    fail(wrong(key, *value, or_one ? "an integer or a list of integers" : "a list of integers"));
    return result;
  }
  const json list = one ? json::array({*value}) : *value;
  for (const json& element : list) {
    const auto integer = as_integer(element, low, high);
    if (!integer) {
      fail(wrong(key, element, integer_text(low, high)));
      return {};
    }
    result.push_back(*integer);
  }
  return result;
}

std::vector<std::string> ConfigFields::texts(const char* key) {
  const json* value = find(*node_, key);
  std::vector<std::string> result;
  if (value == nullptr) return result;
  if (!value->is_array()) fail(wrong(key, *value, "a list of strings"));
  for (const json& element : *value) {
    if (!element.is_string()) fail(wrong(key, element, "a string"));
    result.push_back(element.is_string() ? element.get<std::string>() : "");
  }
  return result;
}

ConfigFields ConfigFields::object(const char* key) {
  const std::string where = where_ + ": " + key;
  const json* value = find(*node_, key);
  if (value == nullptr) return {empty_node(), where};
  if (value->is_object()) return {child(*node_, *value), where};
  fail(wrong(key, *value, "an object"));
  return {empty_node(), where};
}

std::vector<ConfigFields> ConfigFields::objects(const char* key) {
  const ConfigFields parent = object(key);
  std::vector<ConfigFields> result;
  for (const auto& [name, value] : parent.node_->object->items()) {
    if (value.is_object()) {
      result.push_back({child(*parent.node_, value), parent.where_ + "." + name});
    } else {
      fail(wrong(std::string(key) + "." + name, value, "an object"));
    }
  }
  return result;
}

}  // namespace warproll
