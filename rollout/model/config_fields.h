// ConfigFields: typed, range-checked reading of one JSON object. The first problem is kept and
// every later getter returns its fallback, so a parser reads straight down and asks status() once.
// Internal to rollout/model/*.cpp. Lifetime: copies and sub-objects share the parsed text.
// Thread: one owner.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/status.h"

namespace warproll {

struct ConfigNode;  // an object of a parsed JSON text

class ConfigFields {
 public:
  // `file` names the object in errors: "config.json". Text that is no JSON object is an error,
  // and so is a key that comes twice in one object, anywhere.
  static Result<ConfigFields> parse(std::string_view text, const std::string& file);

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
  // A list of strings; absent = empty.
  std::vector<std::string> texts(const char* key);
  // The object at `key`, with a status of its own; absent = an empty one.
  ConfigFields object(const char* key);
  // The objects that are the values of the object at `key`.
  std::vector<ConfigFields> objects(const char* key);

  void fail(const std::string& problem);  // "config.json: " + problem
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  ConfigFields(std::shared_ptr<const ConfigNode> node, std::string where)
      : node_(std::move(node)), where_(std::move(where)) {}

  std::shared_ptr<const ConfigNode> node_;
  std::string where_;
  Status status_;
};

}  // namespace warproll
