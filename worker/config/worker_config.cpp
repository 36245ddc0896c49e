#include "worker/config/worker_config.h"

#include "worker/config/shared_sections.h"
#include "worker/config/yaml_config.h"

namespace warproll {
namespace {

void describe_trainer(ConfigVisitor& v, WorkerConfig::Trainer& trainer) {
  const ConfigSection section(v, "trainer", "the trainer this worker serves");
  v.text("endpoint", trainer.endpoint, "the trainer's bound address");
  v.integer("reconnect_ms", trainer.reconnect_ms, {1, 60000},
            "first pause before connecting again");
  v.integer("reconnect_max_ms", trainer.reconnect_max_ms, {1, 600000},
            "the pause doubles up to this");
  v.integer("max_message_mb", trainer.max_message_mb, {1, 4096}, "a larger message is refused");
  v.text("secret_key_file", trainer.curve.secret_key_file,
         "CURVE key pair of this worker (warproll keygen); empty = no CURVE");
  v.text("server_public_key", trainer.curve.server_public_key,
         "CURVE public key of the trainer, 40 characters");
}

void describe_model(ConfigVisitor& v, WorkerConfig::Model& model) {
  const ConfigSection section(v, "model", "what is served at the start");
  v.text("checkpoint", model.checkpoint, "Hugging Face checkpoint directory; required");
  v.integer("weight_version", model.weight_version, {0, 9e15},
            "the version number of that checkpoint");
  v.text("tokenizer", model.tokenizer, "tokenizer.json; empty = beside the checkpoint");
  v.choice("load", model.load, {"files", "random"},
           "random: drawn on the GPU, of the directory's config.json alone; for measuring");
  v.choice("random_weights", model.random_weights, {"mxfp8_experts", "bf16"}, "of load: random");
  v.integer("random_seed", model.random_seed, {0, 9e15}, "of load: random");
  v.choice("activation_dtype", model.activation_dtype, {"auto", "f32", "bf16", "f16"},
           "auto = bf16 on a GPU, f32 on a CPU, where 16-bit rounds as a GPU would");
  v.choice("quantise", model.quantise, {"none", "mxfp8"},
           "mxfp8 quantises BF16 linear weights on receive");
}

void describe_engine(ConfigVisitor& v, WorkerConfig::Engine& engine) {
  const ConfigSection section(v, "engine", "continuous batching and the KV cache");
  v.choice("device", engine.device, {"auto", "cpu", "cuda"}, "auto = a GPU if there is one");
  v.integer("gpu", engine.gpu, {0, 63}, "which GPU");
  v.integer("spare_sms", engine.spare_sms, {-1, 64},
            "GPU: SMs that decoding leaves to a broadcast; -1 = weights.nccl_max_ctas with nccl");
  v.flag("batch_invariant", engine.batch_invariant,
         "GPU: a sample's bits do not depend on the batch, so it can be generated again");
  v.integer("max_running_sequences", engine.max_running_sequences, {1, 65536},
            "sequences decoded together");
  v.integer("max_queued_samples", engine.max_queued_samples, {1, 10000000},
            "samples waiting; beyond it a task is answered busy");
  v.integer("max_batch_tokens", engine.max_batch_tokens, {1, 1048576},
            "tokens of one step, prefill and decode together");
  v.integer("prefill_chunk_tokens", engine.prefill_chunk_tokens, {1, 1048576},
            "prompt tokens of one sequence in one step");
  v.integer("kv_memory_mb", engine.kv_memory_mb, {0, 10000000},
            "memory of the paged KV cache; 0 = what the GPU has left");
  v.integer("kv_block_tokens", engine.kv_block_tokens, {1, 1024}, "tokens of one KV block");
  v.integer("max_context_tokens", engine.max_context_tokens, {0, 100000000},
            "prompt and response; 0 = what the model allows");
  v.integer("threads", engine.threads, {0, 1024}, "CPU threads of a step; 0 = one a core");
}

void describe_weights(ConfigVisitor& v, WorkerConfig::Weights& weights) {
  const ConfigSection section(v, "weights", "checkpoint updates");
  v.list("transports", weights.transports, "offered to the trainer: tcp, directory, nccl");
  v.choice(
      "swap", weights.swap, {"auto", "two_arenas", "host_staged"},
      "host_staged: one arena on the GPU, standby on the host, no pin; auto = if two do not fit");
  v.integer("pin_max_ms", weights.pin_max_ms, {0, 86400000},
            "pinned samples delay an update at most this long");
  v.choice("pin_fallback", weights.pin_fallback, {"keep", "recompute", "abort"},
           "what they do after that");
  v.integer("nccl_max_ctas", weights.nccl_max_ctas, {1, 64},
            "thread blocks of it that a broadcast may take (nccl)");
}

void describe_log(ConfigVisitor& v, WorkerConfig::Log& log) {
  const ConfigSection section(v, "log", "the sample log (RocksDB)");
  v.text("directory", log.directory, "one directory a worker");
  v.choice("durability", log.durability, {"each", "group", "os"},
           "fsync each sample, each group, or leave it to the system");
  v.integer("queue_samples", log.queue_samples, {1, 1000000}, "samples waiting to be written");
  v.integer("keep_samples", log.keep_samples, {0, 9e15},
            "committed samples kept for replay; 0 = all");
  v.integer("keep_hours", log.keep_hours, {0, 1000000}, "and not older than this; 0 = any age");
  v.integer("min_free_mb", log.min_free_mb, {0, 100000000},
            "less free disk than this pauses intake");
  v.flag("compress", log.compress, "zstd for stored samples, on the thread that writes them");
}

}  // namespace

void describe(ConfigVisitor& v, WorkerConfig& config) {
  {
    const ConfigSection section(v, "worker", "this process");
    v.text("name", config.name, "for people; empty = host name and process id");
    v.integer("task_queue", config.task_queue, {1, 1000000}, "tasks held at most");
    v.integer("drain_ms", config.drain_ms, {0, 86400000},
              "SIGTERM: time to finish and send what runs");
  }
  describe_trainer(v, config.trainer);
  describe_model(v, config.model);
  describe_engine(v, config.engine);
  describe_weights(v, config.weights);
  describe_log(v, config.log);
  {
    const ConfigSection section(v, "metrics", "HTTP: /metrics (Prometheus) and /healthz");
    v.text("bind", config.metrics.bind, "address to listen on");
    v.integer("port", config.metrics.port, {0, 65535}, "0 = off");
  }
  describe_logging(v, config.logging.level, config.logging.format);
}

Status validate(const WorkerConfig& config) {
  if (config.model.checkpoint.empty()) {
    return invalid_argument("model.checkpoint is empty, wanted a checkpoint directory");
  }
  if (config.weights.transports.empty()) {
    return invalid_argument(
        "weights.transports is empty, wanted at least one of tcp, directory, nccl");
  }
  for (const std::string& transport : config.weights.transports) {
    if (transport != "tcp" && transport != "directory" && transport != "nccl") {
      return invalid_argument("weights.transports holds '" + transport +
                              "', wanted tcp, directory or nccl");
    }
  }
  if (config.trainer.reconnect_max_ms < config.trainer.reconnect_ms) {
    return invalid_argument("trainer.reconnect_max_ms is " +
                            std::to_string(config.trainer.reconnect_max_ms) +
                            ", wanted at least trainer.reconnect_ms (" +
                            std::to_string(config.trainer.reconnect_ms) + ")");
  }
  const CurveConfig& curve = config.trainer.curve;
  if (curve.secret_key_file.empty() != curve.server_public_key.empty()) {
    return invalid_argument(
        "trainer.secret_key_file and trainer.server_public_key go together: one is '" +
        curve.secret_key_file + "', the other '" + curve.server_public_key + "'");
  }
  return ok_status();
}

Result<WorkerConfig> load_worker_config(const std::string& path,
                                        const std::vector<std::string>& overrides) {
  WorkerConfig config;
  WARPROLL_TRY(read_yaml_config(path, overrides, [&](ConfigVisitor& v) { describe(v, config); }));
  WARPROLL_TRY(validate(config).with_context(path));
  return config;
}

Result<WorkerConfig> parse_worker_config(const std::vector<std::string>& overrides) {
  WorkerConfig config;
  WARPROLL_TRY(parse_yaml_config("", "command line", overrides,
                                 [&](ConfigVisitor& v) { describe(v, config); }));
  WARPROLL_TRY(validate(config));
  return config;
}

std::string print(const WorkerConfig& config) {
  WorkerConfig copy = config;
  return print_yaml_config([&](ConfigVisitor& v) { describe(v, copy); });
}

}  // namespace warproll
