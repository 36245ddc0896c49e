#include "worker/config/nccl_variables.h"

#include <unistd.h>

#include <algorithm>
#include <string_view>

namespace warproll {

std::vector<std::pair<std::string, std::string>> nccl_variables() {
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    const std::string_view text = *each;
    const size_t equals = text.find('=');
    if (text.substr(0, 5) != "NCCL_" || equals == std::string_view::npos) continue;
    variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  std::sort(variables.begin(), variables.end());
  return variables;
}

}  // namespace warproll
