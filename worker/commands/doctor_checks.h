// What `warproll doctor` looks at: the machine, and everything a configuration names, tried the way
// the process would use it but without leaving anything behind. Thread: main.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "worker/config/trainer_config.h"
#include "worker/config/worker_config.h"

namespace warproll {

enum class DoctorVerdict { kOk, kWarn, kFail };
std::string_view to_string(DoctorVerdict verdict);  // "ok", "warn", "FAIL"

struct DoctorFinding {
  DoctorVerdict verdict = DoctorVerdict::kOk;
  std::string check;
  std::string text;
};

std::vector<DoctorFinding> check_machine();
std::vector<DoctorFinding> check_worker(const WorkerConfig& config);
std::vector<DoctorFinding> check_trainer(const TrainerConfig& config);

}  // namespace warproll
