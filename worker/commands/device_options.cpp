#include "worker/commands/device_options.h"

#include <CLI/CLI.hpp>

namespace warproll {

void add_device_options(CLI::App& command, ModelDeviceOptions& options) {
  command.add_option("--device", options.device, "auto, cpu or cuda; auto = a GPU if there is one")
      ->capture_default_str();
  command.add_option("--gpu", options.gpu_index, "which GPU")->capture_default_str();
  command
      .add_option("--activation-dtype", options.activation_dtype,
                  "auto, f32, bf16 or f16; auto = f32 on a CPU, bf16 on a GPU, which has no other")
      ->capture_default_str();
}

}  // namespace warproll
