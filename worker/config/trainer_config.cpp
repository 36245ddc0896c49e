#include "worker/config/trainer_config.h"

#include "weights_sync/arena_device.h"
#include "worker/config/shared_sections.h"
#include "worker/config/yaml_config.h"

namespace warproll {
namespace {

void describe_session(ConfigVisitor& v, TrainerConfig& config) {
  const ConfigSection section(v, "trainer", "this process");
  v.text("bind", config.bind, "where workers connect");
  v.text("state_directory", config.state_directory,
         "the receiver's own database: what was taken, from whom");
  v.text("trajectories", config.trajectories, "JSONL file, one trajectory a line");
  v.integer("heartbeat_ms", config.heartbeat_ms, {10, 60000}, "acks are restated this often");
  v.integer("liveness_ms", config.liveness_ms, {100, 3600000},
            "a worker silent for longer is gone; its tasks are issued again");
  v.integer("max_message_mb", config.max_message_mb, {1, 4096}, "a larger message is refused");
  v.integer("credit_messages", config.credit_messages, {1, 100000},
            "trajectories a worker may have in flight");
  v.integer("credit_mb", config.credit_mb, {1, 65536}, "and their size");
  v.integer("stop_after_samples", config.stop_after_samples, {0, 9e15},
            "end when so many were taken; 0 = when all tasks are done");
  v.flag("drain_workers", config.drain_workers, "at the end, tell the workers to finish and leave");
  v.text("secret_key_file", config.curve.secret_key_file,
         "CURVE key pair of this trainer (warproll keygen); empty = no CURVE");
  v.text("allowed_clients_file", config.curve.allowed_clients_file,
         "public keys of the workers that may connect, one a line");
  v.flag("insecure", config.curve.insecure, "allow a bind beyond loopback without CURVE");
}

void describe_tasks(ConfigVisitor& v, TrainerConfig::Tasks& tasks) {
  const ConfigSection section(v, "tasks", "what is asked of the workers");
  v.choice("source", tasks.source, {"arithmetic", "jsonl", "none"},
           "addition problems with an exact-match reward, a file, or only receive");
  v.text("file", tasks.file, "tasks, one JSON object a line (jsonl)");
  v.integer("count", tasks.count, {0, 9e15}, "tasks to issue (arithmetic); 0 = without end");
  v.integer("group_size", tasks.group_size, {1, 65536}, "samples a task");
  v.integer("open_per_worker", tasks.open_per_worker, {1, 100000},
            "tasks a worker holds at once at most");
  v.integer("seed", tasks.seed, {0, 9e15}, "of the problems and of their sampling");
  v.choice("in_flight", tasks.in_flight, {"keep", "recompute", "abort", "pin"},
           "what a running sample does when new weights come");
  v.flag("return_routes", tasks.return_routes, "ask for the routed experts of every token");
  v.integer("deadline_ms", tasks.deadline_ms, {0, 4294967295.0}, "of a task; 0 = none");
}

void describe_checkpoints(ConfigVisitor& v, TrainerConfig::Checkpoints& checkpoints) {
  const ConfigSection section(v, "checkpoints", "what is published, and how");
  v.list("publish", checkpoints.publish,
         "checkpoint directories in order; the first is what the workers start on");
  v.integer("first_version", checkpoints.first_version, {0, 9e15},
            "weight_version of the first; the next ones count up");
  v.integer("every_samples", checkpoints.every_samples, {1, 9e15},
            "publish the next after this many more trajectories");
  v.choice("transport", checkpoints.transport, {"tcp", "directory", "nccl"},
           "how the bytes travel");
  v.text("tcp_bind", checkpoints.tcp_bind, "where the bytes are served (tcp)");
  v.text("tcp_advertise", checkpoints.tcp_advertise,
         "that address as the workers see it; empty = as bound");
  v.text("directory", checkpoints.directory, "shared folder (directory)");
  v.integer("nccl_device", checkpoints.nccl_device, {0, 1023}, "GPU that sends (nccl)");
  v.integer("nccl_max_ctas", checkpoints.nccl_max_ctas, {1, 64},
            "thread blocks of a broadcast, on every GPU of the group (nccl)");
  v.choice("nccl_stream", checkpoints.nccl_stream, {"tensors", "arena"},
           "what is sent; arena: as workers on GPUs lay it out, received in place (nccl)");
  v.choice("quantise", checkpoints.quantise, {"none", "mxfp8"},
           "what BF16 linear weights become; as the workers' model.quantise");
  v.integer("bucket_mb", checkpoints.bucket_mb, {0, 4096},
            "unit of transfer; 0 = 256 with nccl, else 16");
  v.integer("deadline_ms", checkpoints.deadline_ms, {100, 86400000},
            "of one update; slower workers are left behind");
  v.integer("quorum", checkpoints.quorum, {0, 1000000},
            "workers that must be ready to commit; 0 = all that are alive");
}

}  // namespace

uint64_t TrainerConfig::Checkpoints::bucket_bytes() const {
  constexpr uint64_t kHostBucketBytes = uint64_t{16} << 20;
  if (bucket_mb != 0) return static_cast<uint64_t>(bucket_mb) << 20;
  return transport == "nccl" ? kDeviceBucketBytes : kHostBucketBytes;
}

void describe(ConfigVisitor& v, TrainerConfig& config) {
  describe_session(v, config);
  describe_tasks(v, config.tasks);
  {
    const ConfigSection section(v, "sampling", "of generated tasks");
    v.number("temperature", config.sampling.temperature, {0, 100}, "0 = greedy");
    v.number("top_p", config.sampling.top_p, {1e-6, 1}, "1 = off");
    v.integer("top_k", config.sampling.top_k, {0, 2147483647}, "0 = off");
    v.number("min_p", config.sampling.min_p, {0, 1}, "0 = off");
    v.integer("max_tokens", config.sampling.max_tokens, {1, 2147483647}, "sampled tokens at most");
  }
  describe_checkpoints(v, config.checkpoints);
  describe_logging(v, config.logging.level, config.logging.format);
}

Status validate(const TrainerConfig& config) {
  if (config.tasks.source == "jsonl" && config.tasks.file.empty()) {
    return invalid_argument("tasks.file is empty, wanted a JSONL file for tasks.source jsonl");
  }
  if (config.curve.secret_key_file.empty() != config.curve.allowed_clients_file.empty()) {
    return invalid_argument(
        "trainer.secret_key_file and trainer.allowed_clients_file go together: one is '" +
        config.curve.secret_key_file + "', the other '" + config.curve.allowed_clients_file + "'");
  }
  if (config.checkpoints.nccl_stream == "arena" && config.checkpoints.transport != "nccl") {
    return invalid_argument(
        "checkpoints.nccl_stream is arena, wanted checkpoints.transport nccl, got " +
        config.checkpoints.transport);
  }
  if (config.liveness_ms < 2 * config.heartbeat_ms) {
    return invalid_argument("trainer.liveness_ms is " + std::to_string(config.liveness_ms) +
                            ", wanted at least twice trainer.heartbeat_ms (" +
                            std::to_string(config.heartbeat_ms) + ")");
  }
  return ok_status();
}

Result<TrainerConfig> load_trainer_config(const std::string& path,
                                          const std::vector<std::string>& overrides) {
  TrainerConfig config;
  WARPROLL_TRY(read_yaml_config(path, overrides, [&](ConfigVisitor& v) { describe(v, config); }));
  WARPROLL_TRY(validate(config).with_context(path));
  return config;
}

Result<TrainerConfig> parse_trainer_config(const std::vector<std::string>& overrides) {
  TrainerConfig config;
  WARPROLL_TRY(parse_yaml_config("", "command line", overrides,
                                 [&](ConfigVisitor& v) { describe(v, config); }));
  WARPROLL_TRY(validate(config));
  return config;
}

std::string print(const TrainerConfig& config) {
  TrainerConfig copy = config;
  return print_yaml_config([&](ConfigVisitor& v) { describe(v, copy); });
}

}  // namespace warproll
