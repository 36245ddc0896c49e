// Configuration files and task lines from outside: no crash, no hang, and what is accepted prints
// and reads back to the same configuration.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "worker/config/trainer_config.h"
#include "worker/config/worker_config.h"
#include "worker/config/yaml_config.h"
#include "worker/trainer/task_json.h"

namespace {

using namespace warproll;

template <typename Config>
void check_config(const std::string& yaml) {
  Config config;
  const auto read = [](const std::string& text, Config& into) {
    return parse_yaml_config(text, "fuzz.yaml", {}, [&](ConfigVisitor& v) { describe(v, into); });
  };
  if (!read(yaml, config).ok()) return;
  Config again;
  if (!read(print(config), again).ok() || print(again) != print(config)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  check_config<WorkerConfig>(text);
  check_config<TrainerConfig>(text);
  const auto task = task_from_json(text, {});
  if (task.ok()) static_cast<void>(validate(*task));
  return 0;
}
