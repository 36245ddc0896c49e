#include <yaml-cpp/yaml.h>

#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "worker/config/yaml_config.h"
#include "worker/config/yaml_text_check.h"

namespace warproll {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

// A value and where it stands, from the file or from an override.
struct Located {
  YAML::Node node;
  std::string where;  // "worker.yaml:12"
};

std::string node_text(const YAML::Node& node) {
  if (node.IsScalar()) return "'" + node.Scalar() + "'";
  if (node.IsSequence()) return "a list";
  if (node.IsMap()) return "a section";
  return "nothing";
}

class YamlReader final : public ConfigVisitor {
 public:
  YamlReader(YAML::Node root, std::string name) : name_(std::move(name)) { collect(root, "", 0); }

  void add_override(const std::string& assignment) {
    const size_t equals = assignment.find('=');
    if (equals == std::string::npos || equals == 0) {
      problem("--set " + assignment, "is not of the form section.key=value");
      return;
    }
    const std::string path = assignment.substr(0, equals);
    try {
      values_[path] = {YAML::Load(assignment.substr(equals + 1)), "--set " + path};
    } catch (const YAML::Exception& error) {
      problem("--set " + path, std::string("is not YAML: ") + error.msg);
    }
  }

  void begin_section(std::string_view name, std::string_view) override {
    sections_.emplace_back(name);
    with({}, [&](const Located& value) {
      if (value.node.IsMap() || value.node.IsNull()) return;
      problem(value.where, path() + " is " + node_text(value.node) + ", wanted a section");
    });
  }
  void end_section() override { sections_.pop_back(); }

  void text(std::string_view key, std::string& field, std::string_view) override {
    with(key, [&](const Located& value) { read_scalar(value, path(key), "text", field); });
  }
  void choice(std::string_view key, std::string& field, const std::vector<std::string>& choices,
              std::string_view) override {
    with(key, [&](const Located& value) {
      std::string got;
      std::string wanted = "one of";
      for (const std::string& option : choices) wanted += " " + option;
      if (!read_scalar(value, path(key), wanted, got)) return;
      for (const std::string& option : choices) {
        if (got == option) {
          field = got;
          return;
        }
      }
      problem(value.where, path(key) + " is '" + got + "', wanted " + wanted);
    });
  }
  void flag(std::string_view key, bool& field, std::string_view) override {
    with(key, [&](const Located& value) {
      const std::string got = value.node.IsScalar() ? value.node.Scalar() : "";
      if (got == "true" || got == "false") {
        field = got == "true";
      } else {
        problem(value.where, path(key) + " is " + node_text(value.node) + ", wanted true or false");
      }
    });
  }
  void integer(std::string_view key, int64_t& field, Range range, std::string_view) override {
    with(key, [&](const Located& value) {
      int64_t got = 0;
      if (!value.node.IsScalar() || !YAML::convert<int64_t>::decode(value.node, got)) {
        problem(value.where, path(key) + " is " + node_text(value.node) +
                                 ", wanted a whole number" + range_text(range));
      } else if (in_range(static_cast<double>(got), range, value, path(key))) {
        field = got;
      }
    });
  }
  void number(std::string_view key, double& field, Range range, std::string_view) override {
    with(key, [&](const Located& value) {
      double got = 0;
      if (!value.node.IsScalar() || !YAML::convert<double>::decode(value.node, got) ||
          !std::isfinite(got)) {
        problem(value.where, path(key) + " is " + node_text(value.node) + ", wanted a number" +
                                 range_text(range));
      } else if (in_range(got, range, value, path(key))) {
        field = got;
      }
    });
  }
  void list(std::string_view key, std::vector<std::string>& field, std::string_view) override {
    with(key, [&](const Located& value) {
      if (!value.node.IsSequence()) {
        problem(value.where,
                path(key) + " is " + node_text(value.node) + ", wanted a list: [a, b]");
        return;
      }
      std::vector<std::string> got;
      for (const YAML::Node& item : value.node) {
        if (!item.IsScalar()) {
          problem(value.where, path(key) + " holds " + node_text(item) + ", wanted texts");
          return;
        }
        got.push_back(item.Scalar());
      }
      field = std::move(got);
    });
  }

  Status finish() {
    for (const auto& [path, value] : values_) {
      if (known_.contains(path)) continue;
      problem(value.where, "unknown key " + path + nearest(path));
    }
    if (problems_.empty()) return ok_status();
    std::string message;
    for (const std::string& text : problems_) message += (message.empty() ? "" : "\n") + text;
    return invalid_argument(message);
  }

 private:
  void collect(const YAML::Node& node, const std::string& prefix, int depth) {
    if (depth > kMaxYamlNesting) return problem(where(node), "nested deeper than 32 levels");
    std::set<std::string> seen;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) {
        problem(where(entry.first), "a key is " + node_text(entry.first) + ", wanted text");
        continue;
      }
      const std::string path =
          prefix.empty() ? entry.first.Scalar() : prefix + "." + entry.first.Scalar();
      if (!seen.insert(path).second) problem(where(entry.first), path + " is given twice");
      values_[path] = {entry.second, where(entry.first)};
      if (entry.second.IsMap()) collect(entry.second, path, depth + 1);
    }
  }
  std::string where(const YAML::Node& node) const {
    return name_ + ":" + std::to_string(node.Mark().line + 1);
  }
  std::string path(std::string_view key = {}) const {
    std::string result;
    for (const std::string& section : sections_) result += (result.empty() ? "" : ".") + section;
    if (key.empty()) return result;
    return (result.empty() ? "" : result + ".") + std::string(key);
  }
  template <typename Function>
  void with(std::string_view key, const Function& function) {
    known_.insert(path(key));
    const auto found = values_.find(path(key));
    if (found != values_.end()) function(found->second);
  }
  bool read_scalar(const Located& value, const std::string& path, const std::string& wanted,
                   std::string& field) {
    if (value.node.IsScalar() || value.node.IsNull()) {
      field = value.node.IsNull() ? "" : value.node.Scalar();
      return true;
    }
    problem(value.where, path + " is " + node_text(value.node) + ", wanted " + wanted);
    return false;
  }
  static std::string range_text(Range range) {
    if (std::isinf(range.min) && std::isinf(range.max)) return "";
    std::ostringstream text;
    text.precision(15);
    if (std::isinf(range.max)) {
      text << " of at least " << range.min;
    } else {
      text << " from " << range.min << " to " << range.max;
    }
    return text.str();
  }
  bool in_range(double got, Range range, const Located& value, const std::string& path) {
    if (got >= range.min && got <= range.max) return true;
    problem(value.where,
            path + " is " + node_text(value.node) + ", wanted a value" + range_text(range));
    return false;
  }
  // ", did you mean X?" for a known key with the same last word.
  std::string nearest(const std::string& path) const {
    const std::string last = path.substr(path.rfind('.') + 1);
    for (const std::string& known : known_) {
      const std::string known_last = known.substr(known.rfind('.') + 1);
      if (known_last == last || known_last.starts_with(last) || last.starts_with(known_last)) {
        return ", did you mean " + known + "?";
      }
    }
    return "; `warproll config show` lists the known ones";
  }
  void problem(const std::string& where, const std::string& what) {
    problems_.push_back(where + ": " + what);
  }

  const std::string name_;
  std::vector<std::string> sections_;
  std::map<std::string, Located> values_;
  std::set<std::string> known_;
  std::vector<std::string> problems_;
};

}  // namespace

Status parse_yaml_config(const std::string& yaml, const std::string& name,
                         const std::vector<std::string>& overrides,
                         const DescribeFunction& describe) {
  if (yaml.size() > kMaxFileBytes) {
    return invalid_argument(name + ": is " + std::to_string(yaml.size()) +
                            " bytes, wanted at most " + std::to_string(kMaxFileBytes));
  }
  WARPROLL_TRY(check_yaml_text(yaml, name));
  YAML::Node root;
  try {
    root = YAML::Load(yaml);
  } catch (const YAML::Exception& error) {
    return invalid_argument(name + ":" + std::to_string(error.mark.line + 1) +
                            ": is not YAML: " + error.msg);
  }
  if (!root.IsMap() && !root.IsNull()) {
    return invalid_argument(name + ":1: is " + node_text(root) + ", wanted sections with keys");
  }
  try {
    YamlReader reader(root, name);
    for (const std::string& assignment : overrides) reader.add_override(assignment);
    describe(reader);
    return reader.finish();
  } catch (const YAML::Exception& error) {  // e.g. an alias to nothing
    return invalid_argument(name + ": " + error.what());
  }
}

Status read_yaml_config(const std::string& path, const std::vector<std::string>& overrides,
                        const DescribeFunction& describe) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found(path + ": cannot be opened for reading");
  std::ostringstream text;
  text << file.rdbuf();
  return parse_yaml_config(text.str(), path, overrides, describe);
}

}  // namespace warproll
