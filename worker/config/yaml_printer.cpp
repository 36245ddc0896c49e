#include <cmath>
#include <cstdio>

#include "worker/config/yaml_config.h"

namespace warproll {
namespace {

constexpr size_t kCommentColumn = 44;

std::string quoted(const std::string& text) {
  const bool plain = !text.empty() && text != "true" && text != "false" && text != "null" &&
                     text != "~" &&
                     text.find_first_not_of(
                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-") ==
                         std::string::npos &&
                     text.find_first_not_of("0123456789.-") != std::string::npos && text[0] != '-';
  if (plain) return text;
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (c == '\n') {
      result += "\\n";
    } else {
      result += c;
    }
  }
  return result + "\"";
}

class YamlPrinter final : public ConfigVisitor {
 public:
  void begin_section(std::string_view name, std::string_view comment) override {
    if (!text_.empty()) text_ += "\n";
    line(std::string(name) + ":", comment);
    ++depth_;
  }
  void end_section() override { --depth_; }
  void text(std::string_view key, std::string& field, std::string_view comment) override {
    line(std::string(key) + ": " + quoted(field), comment);
  }
  void choice(std::string_view key, std::string& field, const std::vector<std::string>& choices,
              std::string_view comment) override {
    std::string options;
    for (const std::string& option : choices) options += (options.empty() ? "" : " | ") + option;
    line(std::string(key) + ": " + quoted(field), options + ": " + std::string(comment));
  }
  void flag(std::string_view key, bool& field, std::string_view comment) override {
    line(std::string(key) + ": " + (field ? "true" : "false"), comment);
  }
  void integer(std::string_view key, int64_t& field, Range, std::string_view comment) override {
    line(std::string(key) + ": " + std::to_string(field), comment);
  }
  void number(std::string_view key, double& field, Range, std::string_view comment) override {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.10g", field);
    line(std::string(key) + ": " + digits, comment);
  }
  void list(std::string_view key, std::vector<std::string>& field,
            std::string_view comment) override {
    std::string items;
    for (const std::string& item : field) items += (items.empty() ? "" : ", ") + quoted(item);
    line(std::string(key) + ": [" + items + "]", comment);
  }
  std::string take() { return std::move(text_); }

 private:
  void line(const std::string& content, std::string_view comment) {
    std::string result(static_cast<size_t>(depth_) * 2, ' ');
    result += content;
    if (!comment.empty()) {
      result.append(result.size() + 2 < kCommentColumn ? kCommentColumn - result.size() : 2, ' ');
      result += "# ";
      result += comment;
    }
    text_ += result + "\n";
  }
  std::string text_;
  int depth_ = 0;
};

}  // namespace

std::string print_yaml_config(const DescribeFunction& describe) {
  YamlPrinter printer;
  describe(printer);
  return printer.take();
}

}  // namespace warproll
