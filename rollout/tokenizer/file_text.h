// A small text file as a string. Internal to rollout/tokenizer. Thread: any.
#pragma once

#include <string>

#include "protocol/status.h"

namespace warproll {

// kNotFound: no such file; kInvalidArgument: not a regular file, or over 256 MiB.
Result<std::string> read_file_text(const std::string& path);

}  // namespace warproll
