// What yaml-cpp must not be given, found in the text before it parses: it recurses once a level, and
// it takes a quote that is never closed for a text that reaches to the end of the file, so that every
// key below is silently gone. Thread: pure function.
#pragma once

#include <string>

#include "protocol/status.h"

namespace warproll {

constexpr int kMaxYamlNesting = 32;

// kInvalidArgument names `name` (the file) and the line.
Status check_yaml_text(const std::string& yaml, const std::string& name);

}  // namespace warproll
