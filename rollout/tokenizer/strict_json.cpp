#include "rollout/tokenizer/strict_json.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <unordered_set>
#include <utility>
#include <vector>

namespace warproll {
namespace {

using nlohmann::json;

// Leaves the parser from inside its callback; caught below.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class StrictnessChecker {
 public:
  void see(int depth, json::parse_event_t event, const json& parsed) {
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      if (depth >= kMaxJsonDepth) {
        throw Refused("nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
      }
      keys_.resize(depth + 1);
      keys_[depth].clear();
    } else if (event == json::parse_event_t::key) {
      // The parser counts a key as one level below its object's start.
      if (!keys_[depth - 1].insert(parsed.get_ref<const std::string&>()).second) {
        throw Refused("the key " + describe_json(parsed) + " twice in one object");
      }
    }
  }

 private:
  std::vector<std::unordered_set<std::string>> keys_;  // by depth of the object
};

}  // namespace

Result<json> parse_strict_json(std::string_view text) {
  StrictnessChecker checker;
  try {
    return json::parse(text, [&](int depth, json::parse_event_t event, json& parsed) {
      checker.see(depth, event, parsed);
      return true;
    });
  } catch (const Refused& refused) {
    return invalid_argument(std::string("not acceptable JSON: ") + refused.what());
  } catch (const json::exception& error) {
    return invalid_argument("not JSON (" + std::to_string(text.size()) +
                            " bytes): " + error.what());
  }
}

std::string describe_json(const json& value) {
  constexpr size_t kMaxShown = 80;
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array of " + std::to_string(value.size());
  std::string shown = value.dump(-1, ' ', true);  // ASCII: may be cut anywhere
  if (shown.size() > kMaxShown) shown = shown.substr(0, kMaxShown) + "...";
  return shown;
}

}  // namespace warproll
