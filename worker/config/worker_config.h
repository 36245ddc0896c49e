// WorkerConfig: everything `warproll worker` can be told. Initialisers are the defaults;
// describe() names each key, its range and what it is (configs/worker.yaml is its print).
// Thread: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/status.h"
#include "worker/config/config_visitor.h"

namespace warproll {

struct CurveConfig {                 // one end's CURVE settings
  std::string secret_key_file;       // own key pair; empty = no CURVE
  std::string server_public_key;     // worker: the trainer's public key (Z85, 40 characters)
  std::string allowed_clients_file;  // trainer: public keys that may connect, one a line
  bool insecure = false;
};

struct WorkerConfig {
  std::string name;
  int64_t task_queue = 256;
  int64_t drain_ms = 30000;

  struct Trainer {
    std::string endpoint = "tcp://127.0.0.1:5600";
    int64_t reconnect_ms = 100;
    int64_t reconnect_max_ms = 5000;
    int64_t max_message_mb = 256;
    CurveConfig curve;
  } trainer;

  struct Model {
    std::string checkpoint;
    int64_t weight_version = 1;
    std::string tokenizer;
    std::string load = "files";
    std::string random_weights = "mxfp8_experts";
    int64_t random_seed = 1;
    std::string activation_dtype = "auto";
    std::string quantise = "none";
  } model;

  struct Engine {
    std::string device = "auto";
    int64_t gpu = 0;
    int64_t spare_sms = -1;
    bool batch_invariant = true;
    int64_t max_running_sequences = 32;
    int64_t max_queued_samples = 1024;
    int64_t max_batch_tokens = 256;
    int64_t prefill_chunk_tokens = 128;
    int64_t kv_memory_mb = 256;
    int64_t kv_block_tokens = 16;
    int64_t max_context_tokens = 0;
    int64_t threads = 0;
  } engine;

  struct Weights {
    std::vector<std::string> transports = {"tcp", "directory"};
    std::string swap = "auto";
    int64_t pin_max_ms = 30000;
    std::string pin_fallback = "keep";
    int64_t nccl_max_ctas = 1;
  } weights;

  struct Log {
    std::string directory = "warproll-log";
    std::string durability = "group";
    int64_t queue_samples = 256;
    int64_t keep_samples = 100000;
    int64_t keep_hours = 0;
    int64_t min_free_mb = 512;
    bool compress = false;
  } log;

  struct Metrics {
    std::string bind = "127.0.0.1";
    int64_t port = 0;
  } metrics;

  struct Logging {
    std::string level = "info";
    std::string format = "text";
  } logging;
};

void describe(ConfigVisitor& visitor, WorkerConfig& config);
// Checks across keys; names the key. Files are not opened here.
Status validate(const WorkerConfig& config);
Result<WorkerConfig> load_worker_config(const std::string& path,
                                        const std::vector<std::string>& overrides);
// The defaults with overrides, without a file.
Result<WorkerConfig> parse_worker_config(const std::vector<std::string>& overrides);
std::string print(const WorkerConfig& config);

}  // namespace warproll
