// JSON as this project accepts it from outside: nesting at most kMaxJsonDepth, no key twice in an
// object (a parser that keeps the last one hides half of a file), nothing after the value.
// Thread: pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "protocol/status.h"

namespace warproll {

inline constexpr int kMaxJsonDepth = 64;

Result<nlohmann::json> parse_strict_json(std::string_view text);

// For messages: "text" in quotes (cut when long), a number, or the type ("an object").
std::string describe_json(const nlohmann::json& value);

}  // namespace warproll
