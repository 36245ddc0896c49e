#include "tests/worker/node/live_update_rig.h"

#include <gtest/gtest.h>

#include <utility>

#include "kernels/parallel.h"
#include "worker/node/serving_model.h"

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;
using update_fixtures::in_ms;

constexpr int64_t kPatienceMs = 120'000;  // only a hang takes that long, also under sanitizers
constexpr size_t kOutstanding = 64;
// The load generator is awaited every so many steps, so it is at most twice as many behind. Each flip
// takes a transfer of 3 steps and ends at most the 8 that run (abort): of the 56 that wait at most 48
// start meanwhile, and the queue cannot run empty for want of a CPU.
constexpr uint64_t kStepsAheadOfLoad = 8;

EngineConfig engine_config() {
  EngineConfig config;
  config.max_batch_tokens = 48;
  config.prefill_chunk_tokens = 16;
  config.max_running_sequences = 8;
  config.max_queued_requests = 2 * kOutstanding;
  config.block_tokens = 8;
  config.num_blocks = 128;
  return config;
}

}  // namespace

void StandingTransport::bring(OfferedCheckpoint offered) {
  const std::lock_guard lock(mutex_);
  offered_ = std::move(offered);
}

Status StandingTransport::receive(const ReceiveRequest&, const Manifest& manifest,
                                  const StreamSink& sink, const Cancellation& cancellation) {
  const auto give_up = in_ms(kPatienceMs);
  OfferedCheckpoint offered;
  {
    const std::lock_guard lock(mutex_);
    offered = offered_;
  }
  for (size_t i = 0; i < manifest.entries.size(); ++i) {
    if (waits_for_steps_ && i == manifest.entries.size() / 2) {
      const uint64_t before = steps_.count();
      while (!steps_.wait_for(before + kSteps, in_ms(100))) {
        if (cancellation.cancelled()) return aborted("cancelled");
        if (Clock::now() > give_up) return deadline_exceeded("the engine stands still");
      }
      steps_during_ += steps_.count() - before;
    }
    WARPROLL_TRY(sink(manifest.stream_offset(manifest.entries[i]), offered.checkpoint->bytes(i)));
  }
  return ok_status();
}

LiveUpdateRig::LiveUpdateRig(InFlightPolicy policy) : policy_(policy) {
  UpdateReceiverOptions options;
  options.protocol = {.producer_id_hex = "aa", .defer_retry_ms = 1};
  options.layout = make_layout_function(false, std::nullopt);
  options.install = [this](const StagedWeightsPtr& staged) { return install(staged); };
  options.send = [this](const Message& message) {
    Message copy = message;
    EXPECT_EQ(answers_.try_push(copy), QueueResult::kOk);
  };
  options.transports = {&transport_};
  options.pinned_sequences = [this](uint64_t) {
    return static_cast<uint32_t>(engine_->pinned_sequences());
  };
  options.alarm = [this](const std::string& text) { alarms_.push_back(text); };
  receiver_ = std::make_unique<UpdateReceiver>(std::move(options));
  const auto staged = receiver_->load_initial(checkpoint_fixtures::golden("arith-v1"), 1).value();

  EngineParts parts;
  parts.config = engine_config();
  parts.weights = make_weight_set(staged, ModelDevice{}).value();
  parts.backend = make_cpu_backend(parts.weights->config, parts.config.num_blocks,
                                   parts.config.block_tokens, ActivationDtype::kF32);
  parts.backend.forward = [this, forward = parts.backend.forward](const ForwardBatch& batch,
                                                                  const WeightSet& weights,
                                                                  ForwardOutput& out) {
    thread_local const bool is_single = (set_kernel_threads(1), true);
    static_cast<void>(is_single);
    before_step();
    forward(batch, weights, out);
  };
  engine_ = std::move(Engine::create(std::move(parts))).value();
  engine_for_steps_ = engine_.get();
  receiver_->start();
}

LiveUpdateRig::~LiveUpdateRig() {
  stopping_ = true;
  if (load_thread_.joinable()) load_thread_.join();
  receiver_.reset();
  engine_.reset();
}

// On the engine thread, before each forward pass.
void LiveUpdateRig::before_step() {
  if (loaded_ && !stopping_) {
    if (engine_for_steps_.load()->stats().waiting_sequences == 0) ++steps_with_empty_queue_;
    const uint64_t round = steps_.count() / kStepsAheadOfLoad;
    while (!stopping_ && !top_ups_.wait_for(round, in_ms(100))) {
    }
  }
  steps_.add();
}

Result<InstallReport> LiveUpdateRig::install(const StagedWeightsPtr& staged) {
  WARPROLL_TRY_ASSIGN(weights, make_weight_set(staged, ModelDevice{}));
  WARPROLL_TRY_ASSIGN(swap, engine_->install_weights(std::move(weights), in_ms(kPatienceMs)));
  return InstallReport{swap.stall_us, swap.stall_steps, swap.in_flight_sequences};
}

void LiveUpdateRig::start_load(int32_t tokens_per_sample) {
  load_thread_ = std::thread([this, tokens_per_sample] { make_load(tokens_per_sample); });
  const auto give_up = in_ms(kPatienceMs);
  while (engine_->stats().waiting_sequences == 0 && Clock::now() < give_up)
    std::this_thread::yield();
  loaded_ = true;
  transport_.wait_for_steps();
}

void LiveUpdateRig::make_load(int32_t tokens_per_sample) {
  while (!stopping_) {
    // So many rounds of kStepsAheadOfLoad steps may go on: counted before what they end is replaced.
    const uint64_t rounds = steps_.count() / kStepsAheadOfLoad + 1;
    collect(in_ms(2));
    top_up(tokens_per_sample);
    while (top_ups_.count() < rounds) top_ups_.add();
  }
  const auto give_up = in_ms(kPatienceMs);
  while (engine_->num_outstanding() > 0 && Clock::now() < give_up) collect(in_ms(100));
}

void LiveUpdateRig::top_up(int32_t tokens_per_sample) {
  while (engine_->num_outstanding() < kOutstanding) {
    // Groups of 4 share a prompt of digits and a '+'.
    std::vector<int32_t> ids;
    for (uint64_t i = 0; i < 5 + next_id_ % 7; ++i)
      ids.push_back(i == 3 ? 10 : 15 + static_cast<int32_t>((next_id_ * 7 + i * 3) % 10));
    const auto prompt = std::make_shared<const std::vector<int32_t>>(std::move(ids));
    for (int32_t index = 0; index < 4; ++index) {
      SampleRequest request;
      request.request_id = next_id_++;
      request.prompt_ids = prompt;
      request.sample_index = index;
      request.sampling.max_tokens = tokens_per_sample;
      request.sampling.ignore_eos = true;
      request.sampling.temperature = index % 2 == 0 ? 1.0f : 0.6f;
      request.sampling.top_p = index % 2 == 0 ? 1.0f : 0.9f;
      request.sampling.seed = request.request_id;
      request.in_flight = policy_;
      EXPECT_TRUE(engine_->submit(request).ok());
      load_.requests[request.request_id] = std::move(request);
    }
  }
}

void LiveUpdateRig::collect(Clock::time_point deadline) {
  for (GeneratedSample& sample : engine_->poll(deadline)) {
    const uint64_t id = sample.request_id;
    EXPECT_TRUE(load_.samples.emplace(id, std::move(sample)).second) << "sample " << id << " twice";
  }
}

std::optional<Message> LiveUpdateRig::next_answer() {
  auto answer = answers_.pop(in_ms(kPatienceMs));
  if (!answer) ADD_FAILURE() << "no answer came";
  return answer;
}

std::optional<Message> LiveUpdateRig::stage(const OfferedCheckpoint& offered) {
  transport_.bring(offered);
  const UpdateId id{1, offered.manifest->weight_version, ++attempt_};
  receiver_->handle(
      UpdateBegin{id, "standing", "", "", encode_manifest(*offered.manifest), 1'000'000});
  for (auto answer = next_answer(); answer; answer = next_answer()) {
    if (std::holds_alternative<UpdateDefer>(*answer)) {
      ++load_.defers;
    } else if (std::holds_alternative<UpdateAccept>(*answer)) {
      receiver_->handle(UpdateStart{id, {}, ""});
    } else {
      return answer;
    }
  }
  return std::nullopt;
}

std::optional<UpdateReady> LiveUpdateRig::update(const OfferedCheckpoint& offered) {
  const auto staged = stage(offered);
  const auto* ready = staged ? std::get_if<UpdateReady>(&*staged) : nullptr;
  if (ready == nullptr) {
    ADD_FAILURE() << "not ready: " << receiver_->stats().last_failure;
    return std::nullopt;
  }
  receiver_->handle(UpdateCommit{ready->id});
  const auto answer = next_answer();
  const auto* committed = answer ? std::get_if<UpdateCommitted>(&*answer) : nullptr;
  if (committed == nullptr) {
    ADD_FAILURE() << "not committed: " << receiver_->stats().last_failure;
    return std::nullopt;
  }
  load_.in_flight_at_flips += committed->in_flight_sequences;
  return *ready;
}

LiveLoad LiveUpdateRig::stop() {
  stopping_ = true;
  if (load_thread_.joinable()) load_thread_.join();
  load_.steps = steps_.count();
  load_.steps_with_empty_queue = steps_with_empty_queue_;
  load_.steps_during_transfers = transport_.steps_during_transfers();
  return std::move(load_);
}

}  // namespace warproll
