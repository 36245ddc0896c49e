// Typed access to the fields of a JSON object, each failure naming the path, what was there and
// what was wanted. Internal to rollout/tokenizer. Thread: pure.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "protocol/status.h"

namespace warproll {

// "PATH is GOT, wanted WANTED".
Status json_mismatch(std::string_view path, const nlohmann::json& got, std::string_view wanted);

// An object and its path from the root of the file ("model", "added_tokens[3]"). Views `object`.
class JsonFields {
 public:
  static Result<JsonFields> of(const nlohmann::json& object, std::string path);

  [[nodiscard]] std::string path_of(std::string_view key) const;
  // A missing key reads as null.
  [[nodiscard]] const nlohmann::json& field(const char* key) const;
  [[nodiscard]] Result<bool> boolean(const char* key) const;
  [[nodiscard]] Result<bool> boolean_or(const char* key, bool missing) const;
  [[nodiscard]] Result<std::string> string(const char* key) const;
  [[nodiscard]] Result<JsonFields> object(const char* key) const;
  // The elements are at field(key).
  [[nodiscard]] Status require_array(const char* key) const;
  // For settings that we support in one form only.
  [[nodiscard]] Status require_false(const char* key) const;

 private:
  JsonFields(const nlohmann::json& object, std::string path)
      : object_(&object), path_(std::move(path)) {}
  const nlohmann::json* object_;
  std::string path_;  // empty at the root
};

}  // namespace warproll
