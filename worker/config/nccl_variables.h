// Thread: any, while nobody sets the environment.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace warproll {

// The NCCL_* variables of this process, sorted: what NCCL will go by besides the configuration.
std::vector<std::pair<std::string, std::string>> nccl_variables();

}  // namespace warproll
