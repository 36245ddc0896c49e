// --device, --gpu, --activation-dtype: of every command that runs a model. Thread: main.
#pragma once

#include "worker/commands/command.h"
#include "worker/node/model_device.h"

namespace warproll {

void add_device_options(CLI::App& command, ModelDeviceOptions& options);

}  // namespace warproll
