#include "protocol/strict_json.h"

#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <vector>

namespace warproll {
namespace {

using Json = nlohmann::json;

class Checker final : public nlohmann::json_sax<Json> {
 public:
  Checker(std::string_view what, const JsonLimits& limits) : what_(what), limits_(limits) {}
  [[nodiscard]] const Status& status() const { return status_; }

  bool null() override { return value(); }
  bool boolean(bool /*value*/) override { return value(); }
  bool number_integer(number_integer_t /*value*/) override { return value(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return value(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return value(); }
  bool string(string_t& /*value*/) override { return value(); }
  bool binary(binary_t& /*value*/) override { return value(); }
  bool start_object(size_t /*size*/) override { return open(); }
  bool start_array(size_t /*size*/) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (!value()) return false;
    if (keys_.back().insert(name).second) return true;
    return fail("the key \"" + name + "\" comes twice in one object, wanted once");
  }
  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    return fail("not JSON, at byte " + std::to_string(position) + ": " + error.what());
  }

 private:
  bool fail(const std::string& message) {
    status_ = invalid_argument(what_.empty() ? message : std::string(what_) + ": " + message);
    return false;
  }
  bool value() {
    if (++num_values_ <= limits_.max_values) return true;
    return fail("more than " + std::to_string(limits_.max_values) + " JSON values");
  }
  bool open() {
    if (!value()) return false;
    if (keys_.size() >= limits_.max_depth) {
      return fail("JSON nested deeper than " + std::to_string(limits_.max_depth) + " levels");
    }
    keys_.emplace_back();
    return true;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  std::string_view what_;
  const JsonLimits& limits_;
  size_t num_values_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;  // of the open objects (arrays: unused)
  Status status_;
};

}  // namespace

Status check_json(std::string_view text, std::string_view what, const JsonLimits& limits) {
  Checker checker(what, limits);
  const bool good = Json::sax_parse(text.begin(), text.end(), &checker);
  if (good) return ok_status();
  WARPROLL_CHECK(!checker.status().ok(), "a failed JSON check has a reason");
  return checker.status();
}

Result<Json> parse_strict_json(std::string_view text, std::string_view what,
                               const JsonLimits& limits) {
  WARPROLL_TRY(check_json(text, what, limits));
  return Json::parse(text);
}

std::string describe_json(const Json& value) {
  constexpr size_t kMaxShown = 80;
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array of " + std::to_string(value.size());
  std::string shown = value.dump(-1, ' ', true);  // ASCII: may be cut anywhere
  if (shown.size() > kMaxShown) shown = shown.substr(0, kMaxShown) + "...";
  return shown;
}

}  // namespace warproll
