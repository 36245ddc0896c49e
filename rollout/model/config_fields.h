// ConfigFields: typed, range-checked reading of one JSON object. The first problem is kept and
// every later getter returns its fallback, so a parser reads straight down and asks status() once.
// Internal to rollout/model/*.cpp (it brings the JSON header). Thread: one owner.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/status.h"

namespace warproll {

class ConfigFields {
 public:
  // `where` names the object in errors: "config.json", "config.json: rope_parameters".
  ConfigFields(const nlohmann::json& object, std::string where);

  // null counts as absent, as transformers writes None.
  [[nodiscard]] bool has(const char* key) const;
  // Without a fallback the key is required.
  int32_t integer(const char* key, int32_t low, int32_t high,
                  std::optional<int32_t> fallback = std::nullopt);
  double number(const char* key, double low, double high,
                std::optional<double> fallback = std::nullopt);
  bool boolean(const char* key, bool fallback);
  std::string text(const char* key, const std::string& fallback);
  // A list of integers, or one integer where `or_one`; absent = empty.
  std::vector<int32_t> integers(const char* key, int32_t low, int32_t high, bool or_one = false);
  // The object at `key`; absent or of another type = an empty one (the latter is an error).
  const nlohmann::json& object(const char* key);

  void fail(const std::string& problem);  // "config.json: " + problem
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  const nlohmann::json* find(const char* key) const;
  void wrong(const char* key, const nlohmann::json& value, const std::string& wanted);
  std::optional<int32_t> as_integer(const char* key, const nlohmann::json& value, int32_t low,
                                    int32_t high);

  const nlohmann::json& object_;
  std::string where_;
  Status status_;
};

}  // namespace warproll
