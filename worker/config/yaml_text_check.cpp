#include "worker/config/yaml_text_check.h"

#include <sstream>
#include <string_view>

namespace warproll {
namespace {

bool nested_too_deep(const std::string& yaml) {
  int depth = 0;
  for (const char c : yaml) {
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > kMaxYamlNesting) return true;
  }
  // Block nesting: "- - - -" or "? ? ?" on one line, or ever deeper indents.
  std::istringstream lines(yaml);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find_first_not_of(" -?:\t");
    if ((first == std::string::npos ? line.size() : first) > 2 * kMaxYamlNesting) return true;
  }
  return false;
}

// A quote opens a text only where a value or key can begin; "it's" is a plain word.
bool may_open(std::string_view line, size_t at) {
  return at == 0 || std::string_view(" \t[{,:").find(line[at - 1]) != std::string_view::npos;
}

bool ends_inside_a_quote(std::string_view line) {
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote == '"' && c == '\\') {
      ++i;  // the escaped character
    } else if (c == '\'' && quote == c && line.substr(i + 1).starts_with('\'')) {
      ++i;  // '' is a quote in the text
    } else if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '#' && (i == 0 || line[i - 1] == ' ' || line[i - 1] == '\t')) {
      return false;  // a comment
    } else if ((c == '"' || c == '\'') && may_open(line, i)) {
      quote = c;
    }
  }
  return quote != 0;
}

}  // namespace

Status check_yaml_text(const std::string& yaml, const std::string& name) {
  if (nested_too_deep(yaml)) {
    return invalid_argument(name + ": nested too deeply, wanted at most " +
                            std::to_string(kMaxYamlNesting) + " levels");
  }
  std::istringstream lines(yaml);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (!ends_inside_a_quote(line)) continue;
    return invalid_argument(name + ":" + std::to_string(number) +
                            ": a quote is not closed, wanted its end on the same line");
  }
  return ok_status();
}

}  // namespace warproll
