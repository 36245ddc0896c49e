// Reads a YAML file into a config struct through its describe(), strictly: unknown keys, wrong
// types and values out of range are errors with file and line; and prints a config as commented
// YAML. `overrides` are "section.key=value" from the command line, applied after the file.
// Thread: one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "protocol/status.h"
#include "worker/config/config_visitor.h"

namespace warproll {

using DescribeFunction = std::function<void(ConfigVisitor&)>;

// Every problem found, one a line, in one kInvalidArgument. kNotFound when the file is not there.
Status read_yaml_config(const std::string& path, const std::vector<std::string>& overrides,
                        const DescribeFunction& describe);
// The same for YAML text; `name` stands for the file in messages.
Status parse_yaml_config(const std::string& yaml, const std::string& name,
                         const std::vector<std::string>& overrides,
                         const DescribeFunction& describe);

// Commented YAML of the current values; reading it back gives the same config.
std::string print_yaml_config(const DescribeFunction& describe);

}  // namespace warproll
