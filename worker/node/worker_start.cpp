// How a WorkerNode is put together; running and stopping are in worker_node.cpp, io in worker_io.cpp.
#include <unistd.h>

#include <chrono>

#include "kernels/parallel.h"
#include "weights_sync/directory_transport.h"
#include "weights_sync/nccl/nccl_transport.h"
#include "weights_sync/tcp_transport.h"
#include "worker/config/nccl_variables.h"
#include "worker/node/golden_gate.h"
#include "worker/node/worker_memory.h"
#include "worker/node/worker_node.h"

namespace warproll {
namespace {

constexpr size_t kUpdateMessages = 256;  // waiting for the io loop; all of them are restated

std::string default_name() {
  char host[256] = "worker";
  gethostname(host, sizeof host - 1);
  return std::string(host) + "-" + std::to_string(getpid());
}

}  // namespace

WorkerNode::WorkerNode(const WorkerConfig& config, Logger logger)
    : config_(config),
      logger_(std::move(logger)),
      name_(config.name.empty() ? default_name() : config.name),
      update_messages_(kUpdateMessages) {}

Status WorkerNode::load_weights() {
  for (const std::string& transport : config_.weights.transports) {
    if (transport == "directory") {
      transports_.push_back(std::make_unique<DirectoryTransport>());
      continue;
    }
    if (transport == "nccl") {
      const auto api = open_nccl(static_cast<int32_t>(config_.engine.gpu));
      WARPROLL_TRY(api.status().with_context("weights.transports: nccl"));
      NcclTransportOptions nccl;
      nccl.max_ctas = static_cast<int32_t>(config_.weights.nccl_max_ctas);
      nccl.nccl_variables = nccl_variables();
      transports_.push_back(std::make_unique<NcclTransport>(*api, nccl));
      logger_.info("NCCL " + (*api)->version() + " on GPU " + std::to_string(config_.engine.gpu));
      continue;
    }
    TcpTransportOptions options;
    if (!config_.trainer.curve.secret_key_file.empty()) {
      WARPROLL_TRY_ASSIGN(keys, read_keypair(config_.trainer.curve.secret_key_file));
      options.keys = keys;
    }
    transports_.push_back(std::make_unique<TcpTransport>(context_, options));
  }
  UpdateReceiverOptions options;
  options.device = device_.arenas;
  options.protocol.producer_id_hex = to_hex(log_->producer_id());
  options.protocol.pin_max_ms = static_cast<uint32_t>(config_.weights.pin_max_ms);
  const bool quantise = config_.model.quantise == "mxfp8";
  // The layout function learns the serving model's shape from the initial load.
  options.layout = [this, quantise](const CheckpointFiles& files,
                                    std::span<const TensorInfo> tensors) {
    const std::optional<ModelConfig> serving =
        engine_ ? std::optional<ModelConfig>(model_) : std::nullopt;
    return make_layout_function(quantise, serving, device_.on_gpu())(files, tensors);
  };
  options.install = [this](const StagedWeightsPtr& staged) { return install(staged); };
  options.send = [this](const Message& message) {
    Message copy = message;
    [[maybe_unused]] const QueueResult queued = update_messages_.try_push(copy);
    waker_.wake();
  };
  for (const auto& transport : transports_) options.transports.push_back(transport.get());
  if (!device_.serving_arena) {  // there new weights cannot run before they serve
    options.golden_gate = [this](const StagedWeightsPtr& staged, const GoldenGate& gate) {
      return run_golden_gate(staged, gate, device_);
    };
  }
  options.pinned_sequences = [this](uint64_t) {
    return static_cast<uint32_t>(engine_->pinned_sequences());
  };
  options.pin_fallback = [this](uint64_t) {
    const InFlightPolicy fallback = in_flight_policy_from(config_.weights.pin_fallback).value();
    const Result<int32_t> released =
        engine_->release_pins(fallback, std::chrono::steady_clock::now() + std::chrono::seconds(5));
    logger_.warn("pins held an update for " + std::to_string(config_.weights.pin_max_ms) + " ms: " +
                 (released.ok() ? std::to_string(*released) + " sequences fall back to " +
                                      config_.weights.pin_fallback
                                : released.status().message()));
  };
  options.alarm = [this](const std::string& text) {
    logger_.error("ALARM: " + text);
    const std::lock_guard lock(mutex_);
    last_alarm_ = text;
    ++alarms_;
  };
  updates_ = std::make_unique<UpdateReceiver>(std::move(options));
  const auto version = static_cast<uint64_t>(config_.model.weight_version);
  const Result<StagedWeightsPtr> loaded =
      config_.model.load == "files"
          ? updates_->load_initial(config_.model.checkpoint, version)
          : updates_->load_initial([this, version](WeightArenas& arenas) {
              return load_random_model(random_model(config_), version,
                                       make_layout_function(false, std::nullopt, true), arenas);
            });
  return loaded.status().with_context("model.checkpoint " + config_.model.checkpoint);
}

Status WorkerNode::start_engine() {
  const StagedWeightsPtr staged = updates_->serving();
  WARPROLL_TRY_ASSIGN(weights, make_weight_set(staged, device_));
  serve_from(device_, *staged);
  WARPROLL_TRY_ASSIGN(text, load_text_parts(config_.model.checkpoint, config_.model.tokenizer));
  text_ = std::move(text);
  if (!text_.note.empty()) logger_.warn(text_.note);
  model_ = weights->config;
  model_config_digest_ = config_digest(staged->files);
  identity_.model = model_.architecture;
  identity_.activation_dtype = std::string(to_string(device_.runner.activations));
  identity_.engine_version = "warproll " WARPROLL_VERSION;
  if (device_.on_gpu()) identity_.engine_version += kCudaEngineMark;
  if (text_.tokenizer) identity_.tokenizer_digest = text_.tokenizer->digest();

  EngineParts parts;
  parts.config = engine_config(config_, num_kv_blocks_);
  WARPROLL_TRY(validate(parts.config, model_).with_context("engine"));
  max_context_tokens_ = parts.config.context_tokens(model_);
  parts.backend = device_.runner.make_backend(model_, backend_sizes(parts.config, model_));
  prepare_weights_ = parts.backend.prepare;
  // OpenMP keeps its thread count a thread: it is set on the engine's.
  parts.backend.forward =
      [forward = parts.backend.forward, threads = static_cast<int>(config_.engine.threads)](
          const ForwardBatch& batch, const WeightSet& weight_set, ForwardOutput& out) {
        thread_local const bool threads_set = (set_kernel_threads(threads), true);
        static_cast<void>(threads_set);
        forward(batch, weight_set, out);
      };
  parts.weights = weights;
  parts.tokenizer = text_.tokenizer;
  const int32_t num_blocks = parts.config.num_blocks;
  WARPROLL_TRY_ASSIGN(engine, Engine::create(std::move(parts)));
  engine_ = std::move(engine);
  logger_.info(model_.architecture + ", " + std::to_string(model_.num_layers) + " layers, " +
               std::to_string(model_.num_experts) + " experts, " + identity_.activation_dtype +
               "; version " + std::to_string(staged->weight_version) + ", digest " +
               to_hex(staged->weight_digest) + "; " + std::to_string(num_blocks) +
               " KV blocks of " + std::to_string(config_.engine.kv_block_tokens) + " tokens");
  updates_->start();
  return ok_status();
}

Status WorkerNode::open_log() {
  SampleLogOptions options;
  options.directory = config_.log.directory;
  WARPROLL_TRY_ASSIGN(durability, durability_from(config_.log.durability));
  options.durability = durability;
  options.queue_samples = static_cast<size_t>(config_.log.queue_samples);
  options.compress_records = config_.log.compress;
  options.min_free_bytes = static_cast<uint64_t>(config_.log.min_free_mb) << 20;
  options.retention.keep_samples = static_cast<uint64_t>(config_.log.keep_samples);
  options.retention.keep_age_s = static_cast<uint64_t>(config_.log.keep_hours) * 3600;
  options.on_warning = [this](const std::string& text) { logger_.warn("rocksdb: " + text); };
  WARPROLL_TRY_ASSIGN(log, SampleLog::open(std::move(options)));
  log_ = std::move(log);
  log_->set_sealed_listener([this](uint64_t) { waker_.wake(); });
  const LogInfo info = log_->info();
  logger_.info("log " + config_.log.directory + ": producer " + to_hex(info.producer_id) +
               ", epoch " + std::to_string(info.epoch) + ", " + std::to_string(info.last_seq) +
               " samples, " + std::to_string(info.last_seq - info.commit_upto) + " uncommitted");
  return ok_status();
}

Status WorkerNode::start_collector() {
  CollectorOptions options;
  options.intake_tasks = static_cast<size_t>(config_.task_queue);
  options.max_open_samples = static_cast<uint32_t>(config_.engine.max_queued_samples);
  options.vocab_size = model_.vocab_size;
  options.max_context_tokens = max_context_tokens_;
  if (device_.serving_arena || config_.weights.swap == "host_staged") {
    options.pin_refusal =
        "this worker has one weight arena (host_staged): the old weights are not kept";
  }
  options.identity = identity_;
  collector_ = std::make_unique<Collector>(*engine_, *log_, text_.encoder, std::move(options),
                                           [this] { waker_.wake(); });
  collector_thread_ = std::thread([this] { run_collector(); });
  return ok_status();
}

Status WorkerNode::start_stream() {
  SocketOptions options;
  options.max_message_bytes = static_cast<uint64_t>(config_.trainer.max_message_mb) << 20;
  options.reconnect_ms = static_cast<int>(config_.trainer.reconnect_ms);
  options.reconnect_max_ms = static_cast<int>(config_.trainer.reconnect_max_ms);
  if (!config_.trainer.curve.secret_key_file.empty()) {
    WARPROLL_TRY_ASSIGN(keys, read_keypair(config_.trainer.curve.secret_key_file));
    options.curve_client = CurveClient{keys, config_.trainer.curve.server_public_key};
  }
  WARPROLL_TRY_ASSIGN(socket, WorkerSocket::connect(context_, config_.trainer.endpoint, options));
  socket_.emplace(std::move(socket));
  PublisherOptions publisher_options;
  publisher_options.session.reconnect_min_ms = static_cast<uint32_t>(config_.trainer.reconnect_ms);
  publisher_options.session.reconnect_max_ms =
      static_cast<uint32_t>(config_.trainer.reconnect_max_ms);
  publisher_ = std::make_unique<Publisher>(
      *log_, publisher_options,
      ProducerSession::Sources{[this] { return hello(); }, [this] { return heartbeat(); }});
  io_thread_ = std::thread([this] { run_io(); });
  return ok_status();
}

Status WorkerNode::start_metrics() {
  if (config_.metrics.port == 0) return ok_status();
  WARPROLL_TRY_ASSIGN(server, MetricsServer::start(
                                  config_.metrics.bind, static_cast<int>(config_.metrics.port),
                                  [this] { return metrics(); }, [this] { return health(); }));
  metrics_ = std::move(server);
  logger_.info("metrics on http://" + config_.metrics.bind + ":" +
               std::to_string(metrics_->port()) + "/metrics");
  return ok_status();
}

Result<std::unique_ptr<WorkerNode>> WorkerNode::start(const WorkerConfig& config, Logger logger) {
  std::unique_ptr<WorkerNode> node(new WorkerNode(config, std::move(logger)));
  WARPROLL_TRY(node->open_log());
  WARPROLL_TRY(node->open_device());
  WARPROLL_TRY(node->load_weights());
  WARPROLL_TRY(node->start_engine());
  WARPROLL_TRY(node->start_collector());
  node->set_state(WorkerState::kServing);
  WARPROLL_TRY(node->start_stream());
  WARPROLL_TRY(node->start_metrics());
  node->logger_.info(node->name_ + " serves " + config.trainer.endpoint);
  return node;
}

}  // namespace warproll
