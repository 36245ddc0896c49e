// Sections that worker.yaml and trainer.yaml have in common. Thread: one.
#pragma once

#include <string>

#include "worker/config/config_visitor.h"

namespace warproll {

void describe_logging(ConfigVisitor& visitor, std::string& level, std::string& format);

}  // namespace warproll
