#include "worker/config/shared_sections.h"

namespace warproll {

void describe_logging(ConfigVisitor& v, std::string& level, std::string& format) {
  const ConfigSection section(v, "logging", "what the process says of itself, on stderr");
  v.choice("level", level, {"trace", "debug", "info", "warn", "error", "off"},
           "least severity shown");
  v.choice("format", format, {"text", "json"}, "json is one object a line");
}

}  // namespace warproll
