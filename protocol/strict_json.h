// JSON from outside, checked before it becomes a tree: syntax, UTF-8, nesting, number of values,
// and no key twice in one object (a parser that keeps the last one would hide a tensor).
// Thread: pure functions.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "protocol/status.h"

namespace warproll {

struct JsonLimits {
  size_t max_depth = 64;         // objects and arrays inside each other
  size_t max_values = 16 << 20;  // keys and values together
};

// `what` names the text in the error ("model.safetensors: header"); may be empty.
Status check_json(std::string_view text, std::string_view what, const JsonLimits& limits);
// check_json, then the tree.
Result<nlohmann::json> parse_strict_json(std::string_view text, std::string_view what = {},
                                         const JsonLimits& limits = {});

// For messages: "text" in quotes (cut when long), a number, or the type ("an object").
std::string describe_json(const nlohmann::json& value);

}  // namespace warproll
