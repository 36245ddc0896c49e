#include "worker/commands/bench_sync_worker.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <variant>

#include "worker/commands/random_prompt.h"
#include "worker/node/worker_memory.h"

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int32_t kBlockTokens = 16;
constexpr size_t kWarmUpSteps = 32;  // graphs are captured in the first
constexpr std::chrono::minutes kLongestStep(5);
constexpr uint32_t kForever_ms = 1'000'000'000;

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch())
      .count();
}

BroadcasterOptions broadcaster_options(int32_t deadline_ms) {
  BroadcasterOptions options;
  options.trainer_epoch = 1;
  options.deadline_ms = static_cast<uint32_t>(deadline_ms);
  options.liveness_ms = kForever_ms;  // it lives in this process
  options.max_attempts = 1;           // a failure is to be seen
  return options;
}

// Block tables widen by powers of two, from 16 blocks (rollout/engine/cuda/cuda_backend.cpp).
int32_t tokens_of_one_width(int32_t context) {
  const auto blocks = static_cast<uint32_t>(context / kBlockTokens + 1);  // of the first step
  const auto width = static_cast<int32_t>(std::bit_ceil(std::max(blocks, uint32_t{16})));
  return width * kBlockTokens - context - 1;  // a step may run ahead
}

uint64_t receive_bytes(const RandomCheckpoint& checkpoint) {
  uint64_t largest = 0;
  for (const TensorInfo& tensor : checkpoint.tensors) largest = std::max(largest, tensor.bytes);
  return device_receive_bytes(largest);
}

}  // namespace

Envelope envelope_of(int32_t worker_index) {
  Envelope envelope;
  envelope.producer_id.fill(static_cast<uint8_t>(worker_index + 1));
  envelope.epoch = 1;
  return envelope;
}

SyncWorker::SyncWorker(const SyncWorkerOptions& options, ModelDevice device,
                       TimedTransport& transport, StopSignal& stop)
    : options_(options),
      device_(std::move(device)),
      transport_(transport),
      stop_(stop),
      broadcaster_(broadcaster_options(options.deadline_ms)),
      worker_(envelope_of(options.index)) {}

SyncWorker::~SyncWorker() {
  receiver_.reset();  // cancels what runs; it calls the engine
  engine_.reset();
}

Result<std::unique_ptr<SyncWorker>> SyncWorker::start(const SyncWorkerOptions& options,
                                                      ModelDevice device, const ColdLoad& load,
                                                      uint64_t other_seed,
                                                      TimedTransport& transport, StopSignal& stop) {
  WARPROLL_TRY_ASSIGN(checkpoint, describe_random_model(options.model));
  const int32_t room = checkpoint.config.max_position_embeddings;
  SyncWorkerOptions fitting = options;
  if (options.tokens == 0) {
    fitting.tokens = std::clamp(room - options.context, 1, tokens_of_one_width(options.context));
  }
  if (fitting.context + fitting.tokens > room) {
    return invalid_argument("--context " + std::to_string(options.context) + " and --tokens " +
                            std::to_string(fitting.tokens) + " exceed the model's " +
                            std::to_string(room) + " positions");
  }
  std::unique_ptr<SyncWorker> worker(new SyncWorker(fitting, std::move(device), transport, stop));
  WARPROLL_TRY(worker->plan(checkpoint));
  WARPROLL_TRY(worker->load(load, other_seed));
  WARPROLL_TRY(worker->start_engine());
  return worker;
}

EngineConfig SyncWorker::engine_config() const {
  EngineConfig config;
  config.max_running_sequences = options_.batch;
  config.max_queued_requests = 2 * options_.batch;
  config.max_batch_tokens = std::max(options_.max_batch_tokens, options_.batch);
  config.prefill_chunk_tokens = config.max_batch_tokens;
  config.max_context_tokens = options_.context + options_.tokens;
  config.block_tokens = kBlockTokens;
  config.num_blocks = options_.batch * (config.max_context_tokens / kBlockTokens + 2);
  return config;
}

// Before anything large is allocated.
Status SyncWorker::plan(const RandomCheckpoint& checkpoint) {
  config_ = checkpoint.config;
  if (!device_.on_gpu()) return ok_status();
  WARPROLL_TRY_ASSIGN(layout, make_layout_function(options_.quantise_to_mxfp8, std::nullopt, true)(
                                  checkpoint.files, checkpoint.tensors));
  const EngineConfig engine = engine_config();
  MemoryNeeds needs = gpu_memory_needs(device_, config_, layout, engine);
  needs.receive_bytes = receive_bytes(checkpoint);
  needs.wanted_kv_bytes = needs.kv_block_bytes * static_cast<uint64_t>(engine.num_blocks);
  needs.swap = options_.swap;
  WARPROLL_TRY_ASSIGN(plan, plan_memory(needs));
  memory_text_ = plan.text;
  return plan.host_staged ? stage_on_host(device_, layout.total_bytes) : ok_status();
}

Status SyncWorker::load(const ColdLoad& load, uint64_t other_seed) {
  UpdateReceiverOptions options;
  options.device = device_.arenas;
  options.protocol.producer_id_hex = to_hex(Digest(worker_.producer_id));
  options.layout = [this](const CheckpointFiles& files, std::span<const TensorInfo> tensors) {
    return make_layout_function(options_.quantise_to_mxfp8, config_, device_.on_gpu())(files,
                                                                                       tensors);
  };
  options.install = [this](const StagedWeightsPtr& staged) { return install(staged); };
  options.send = [this](const Message& message) {
    Message copy = message;
    static_cast<void>(from_worker_.try_push(copy));
  };
  options.transports = {&transport_};
  const LayoutFunction layout = options.layout;
  receiver_ = std::make_unique<UpdateReceiver>(std::move(options));
  return receiver_
      ->load_initial([&](WeightArenas& arenas) -> Result<StagedWeightsPtr> {
        {
          WARPROLL_TRY_ASSIGN(other, load(1, other_seed, layout, arenas));
          cold_[other_seed] = {other->weight_digest, other->layout_digest};
        }
        WARPROLL_TRY_ASSIGN(staged, load(1, options_.model.seed, layout, arenas));
        cold_[options_.model.seed] = {staged->weight_digest, staged->layout_digest};
        return staged;
      })
      .status();
}

Status SyncWorker::start_engine() {
  const StagedWeightsPtr staged = receiver_->serving();
  WARPROLL_TRY_ASSIGN(weights, make_weight_set(staged, device_));
  serve_from(device_, *staged);
  EngineParts parts;
  parts.config = engine_config();
  parts.backend = with_step_log(
      device_.runner.make_backend(config_, backend_sizes(parts.config, config_)), steps_);
  prepare_weights_ = parts.backend.prepare;
  parts.weights = weights;
  WARPROLL_TRY_ASSIGN(engine, Engine::create(std::move(parts)));
  engine_ = std::move(engine);
  receiver_->start();
  broadcaster_.on_message(worker_, hello(), now_ms());
  return ok_status();
}

Hello SyncWorker::hello() const {
  Hello hello;
  hello.worker_name = "worker " + std::to_string(options_.index);
  hello.state = WorkerState::kServing;
  hello.weights = receiver_->weight_status();
  hello.transports = receiver_->transport_names();
  hello.environment = transport_.environment();
  return hello;
}

Result<InstallReport> SyncWorker::install(const StagedWeightsPtr& staged) {
  WARPROLL_TRY_ASSIGN(weights, make_weight_set(staged, device_));
  if (prepare_weights_) prepare_weights_(*weights);
  WARPROLL_TRY_ASSIGN(swap,
                      engine_->install_weights(std::move(weights), Clock::now() + kLongestStep,
                                               [this, staged] { serve_from(device_, *staged); }));
  return InstallReport{swap.stall_us, swap.stall_steps, swap.in_flight_sequences};
}

Status SyncWorker::submit_one() {
  SampleRequest request;
  request.request_id = ++last_request_id_;
  request.prompt_ids =
      random_prompt(static_cast<int32_t>(last_request_id_), options_.context, config_.vocab_size);
  request.sampling.max_tokens = options_.tokens;
  request.sampling.ignore_eos = true;
  return engine_->submit(std::move(request));
}

// Sequences that have come to their end.
Status SyncWorker::restart_ended() {
  for (const GeneratedSample& sample : engine_->poll(Clock::now())) {
    if (sample.finish_reason == FinishReason::kError) {
      return internal_error("a sequence ended: " + sample.error_type + ", " + sample.error_message);
    }
    if (!decoding_) continue;
    ++current_.restarted_sequences;
    WARPROLL_TRY(submit_one());
  }
  return ok_status();
}

Status SyncWorker::stop_decoding() {
  decoding_ = false;
  for (uint64_t id = 1; id <= last_request_id_; ++id) engine_->cancel(id, "a new round");
  while (engine_->num_outstanding() > 0) WARPROLL_TRY(pump());
  return ok_status();
}

Status SyncWorker::start_decoding() {
  WARPROLL_TRY(stop_decoding());
  const EngineStats before = engine_->stats();
  decoding_ = true;
  for (int32_t i = 0; i < options_.batch; ++i) WARPROLL_TRY(submit_one());
  // A prompt of n tokens gives one token, a later token one each: the difference says how much of the
  // prompts is in the KV cache.
  const auto prefilled = [&] {
    const EngineStats now = engine_->stats();
    return static_cast<int64_t>(now.forwarded_tokens - before.forwarded_tokens) -
           static_cast<int64_t>(now.sampled_tokens - before.sampled_tokens);
  };
  while (prefilled() < int64_t{options_.batch} * (options_.context - 1)) WARPROLL_TRY(pump());
  const size_t wanted = steps_->num_steps() + kWarmUpSteps;
  while (steps_->num_steps() < wanted) WARPROLL_TRY(pump());
  return ok_status();
}

Status SyncWorker::run_until(Clock::time_point until) {
  while (Clock::now() < until) WARPROLL_TRY(pump());
  return ok_status();
}

}  // namespace warproll
