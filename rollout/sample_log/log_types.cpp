#include "rollout/sample_log/log_types.h"

namespace warproll {

std::string_view to_string(Durability durability) {
  switch (durability) {
    case Durability::kEach:
      return "each";
    case Durability::kGroup:
      return "group";
    case Durability::kOs:
      return "os";
  }
  return "unknown";
}

Result<Durability> durability_from(std::string_view text) {
  for (Durability durability : {Durability::kEach, Durability::kGroup, Durability::kOs}) {
    if (text == to_string(durability)) return durability;
  }
  return invalid_argument("durability: '" + std::string(text) + "', wanted each, group or os");
}

std::string Accounting::to_string() const {
  return "produced " + std::to_string(produced) + (holds() ? " = " : " != ") + "committed " +
         std::to_string(committed) + " + outbox " + std::to_string(outbox) + " + dead letters " +
         std::to_string(dead_letters) + " + gaps " + std::to_string(gaps);
}

}  // namespace warproll
