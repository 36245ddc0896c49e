// Thread: any, while nobody sets the environment.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace warproll {

// The NCCL_* variables of this process, sorted: what NCCL will go by besides the configuration.
std::vector<std::pair<std::string, std::string>> nccl_variables();

// What NCCL_DEBUG asks for goes to standard error, unless NCCL_DEBUG_FILE says where: NCCL would mix it with the
// results on standard output. Before other threads start; child processes go by it too.
void keep_nccl_off_standard_output();

}  // namespace warproll
