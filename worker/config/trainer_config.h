// TrainerConfig: everything the reference trainer `warproll trainer` can be told. Initialisers are
// the defaults; describe() names each key (configs/trainer.yaml is its print).
// Thread: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/status.h"
#include "worker/config/worker_config.h"

namespace warproll {

struct TrainerConfig {
  std::string bind = "tcp://127.0.0.1:5600";
  std::string state_directory = "warproll-trainer";
  std::string trajectories = "trajectories.jsonl";
  int64_t heartbeat_ms = 500;
  int64_t liveness_ms = 5000;
  int64_t max_message_mb = 256;
  int64_t credit_messages = 256;
  int64_t credit_mb = 256;
  int64_t stop_after_samples = 0;
  bool drain_workers = false;
  CurveConfig curve;

  struct Tasks {
    std::string source = "arithmetic";
    std::string file;
    int64_t count = 256;
    int64_t group_size = 4;
    int64_t open_per_worker = 16;
    int64_t seed = 1;
    std::string in_flight = "keep";
    bool return_routes = false;
    int64_t deadline_ms = 0;
  } tasks;

  struct Sampling {
    double temperature = 1.0;
    double top_p = 1.0;
    int64_t top_k = 0;
    double min_p = 0.0;
    int64_t max_tokens = 64;
  } sampling;

  struct Checkpoints {
    std::vector<std::string> publish;
    int64_t first_version = 1;
    int64_t every_samples = 256;
    std::string transport = "tcp";
    std::string tcp_bind = "tcp://127.0.0.1:*";
    std::string tcp_advertise;
    std::string directory = "warproll-checkpoints";
    int64_t nccl_device = 0;
    int64_t nccl_max_ctas = 1;
    std::string nccl_stream = "tensors";
    std::string quantise = "none";
    int64_t bucket_mb = 0;
    int64_t deadline_ms = 60000;
    int64_t quorum = 0;
    [[nodiscard]] uint64_t bucket_bytes() const;
  } checkpoints;

  struct Logging {
    std::string level = "info";
    std::string format = "text";
  } logging;
};

void describe(ConfigVisitor& visitor, TrainerConfig& config);
Status validate(const TrainerConfig& config);
Result<TrainerConfig> load_trainer_config(const std::string& path,
                                          const std::vector<std::string>& overrides);
// The defaults with overrides, without a file.
Result<TrainerConfig> parse_trainer_config(const std::vector<std::string>& overrides);
std::string print(const TrainerConfig& config);

}  // namespace warproll
