#include "worker/commands/command.h"

#include <cstdio>

#include "worker/terminal/exit_code.h"

namespace warproll {

int report_failure(const Status& status) {
  std::fprintf(stderr, "warproll: %s\n", status.message().c_str());
  return exit_code_of(status);
}

int report_config_failure(const Status& status) {
  const int code = report_failure(status);
  return code == kExitBadInput ? kExitUsage : code;
}

std::string footer_with_examples(std::string_view examples) {
  return "Examples:\n" + std::string(examples) + "\n" + exit_code_help();
}

}  // namespace warproll
