#include "rollout/engine/engine.h"

#include <exception>
#include <future>
#include <utility>

namespace warproll {
namespace {

// How long the idle engine thread sleeps at most; a command wakes it at once. Only deadlines of
// requests need it, and those are never live while it is idle.
constexpr std::chrono::seconds kIdleWait{1};
// There is room for the commands of all outstanding requests; this is for a broken promise of it.
constexpr std::chrono::seconds kCommandWait{10};

size_t command_capacity(size_t max_outstanding) {
  constexpr size_t kControlCommands = 64;         // installs and releases under way at once
  return 2 * max_outstanding + kControlCommands;  // a submit and a cancel for each request
}

template <typename T>
Result<T> wait_for(std::future<Result<T>> answer, std::chrono::steady_clock::time_point deadline,
                   const char* what) {
  if (answer.wait_until(deadline) != std::future_status::ready) {
    return deadline_exceeded(std::string("engine: ") + what +
                             " was not done before its deadline; it follows the step that runs");
  }
  try {
    return answer.get();
  } catch (const std::future_error&) {  // dropped with the commands that a failed engine left
    return failed_precondition(std::string("engine: it ended before ") + what);
  }
}

}  // namespace

template <typename T>
struct Engine::Answer {
  std::promise<Result<T>> promise;
  T value{};
};

Result<std::unique_ptr<Engine>> Engine::create(EngineParts parts) {
  const EngineConfig config = parts.config;
  WARPROLL_TRY_ASSIGN(core, EngineCore::create(std::move(parts)));
  return std::unique_ptr<Engine>(new Engine(std::move(core), config));
}

Engine::Engine(std::unique_ptr<EngineCore> core, const EngineConfig& config)
    : max_outstanding_(static_cast<size_t>(config.max_queued_requests)),
      commands_(command_capacity(max_outstanding_)),
      finished_(max_outstanding_),
      core_(std::move(core)),
      stats_(core_->stats()) {
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  commands_.close();
  thread_.join();
}

// ---- any thread ----

Status Engine::submit(SampleRequest request) {
  WARPROLL_TRY(core_->check(request));
  const uint64_t request_id = request.request_id;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    if (outstanding_.contains(request_id)) {
      return already_exists("request " + std::to_string(request_id) +
                            " is live already or its sample was not polled yet");
    }
    if (outstanding_.size() >= max_outstanding_) {
      return unavailable("engine: " + std::to_string(outstanding_.size()) +
                         " requests are submitted and not yet polled, the limit is " +
                         std::to_string(max_outstanding_));
    }
    outstanding_.emplace(request_id, Outstanding{});
  }
  const auto start = [this, request = std::move(request)] {
    const Status status = core_->submit(request);
    WARPROLL_CHECK(status.ok(), "a checked request was refused: " + status.message());
  };
  const Status status = post(start, Clock::now() + kCommandWait);
  if (status.ok()) return status;
  const std::lock_guard lock(mutex_);
  // An engine that failed meanwhile has already delivered an error sample for it.
  if (outstanding_.at(request_id).is_delivered) return ok_status();
  outstanding_.erase(request_id);
  return status;
}

void Engine::cancel(uint64_t request_id, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = outstanding_.find(request_id);
    if (found == outstanding_.end() || found->second.is_cancelling) return;
    found->second.is_cancelling = true;
  }
  const auto stop = [this, request_id, reason] { core_->abort(request_id, "cancelled", reason); };
  if (post(stop, Clock::now() + kCommandWait).ok()) return;
  const std::lock_guard lock(mutex_);  // the engine has ended, or the caller may try again
  const auto found = outstanding_.find(request_id);
  if (found != outstanding_.end()) found->second.is_cancelling = false;
}

std::vector<GeneratedSample> Engine::poll(Clock::time_point deadline) {
  std::vector<GeneratedSample> samples;
  auto sample = finished_.pop(deadline);
  while (sample) {
    samples.push_back(std::move(*sample));
    sample = finished_.try_pop();
  }
  const std::lock_guard lock(mutex_);
  for (const GeneratedSample& polled : samples) outstanding_.erase(polled.request_id);
  return samples;
}

Result<SwapReport> Engine::install_weights(WeightSetPtr weights, Clock::time_point deadline,
                                           std::function<void()> before_flip) {
  auto answer = std::make_shared<Answer<SwapReport>>();
  auto future = answer->promise.get_future();
  Command flip = [this, answer = std::move(answer), weights = std::move(weights),
                  before_flip = std::move(before_flip)] {
    const auto in_flight = core_->install_weights(weights, before_flip);
    if (!in_flight.ok()) {
      answer->promise.set_value(in_flight.status());
      return;
    }
    answer->value.in_flight_sequences = static_cast<uint32_t>(*in_flight);
    installs_.push_back(answer);
  };
  WARPROLL_TRY(post(std::move(flip), deadline));
  return wait_for(std::move(future), deadline, "the swap of weights");
}

Result<int32_t> Engine::release_pins(InFlightPolicy fallback, Clock::time_point deadline) {
  auto answer = std::make_shared<Answer<int32_t>>();
  auto future = answer->promise.get_future();
  Command release = [this, answer = std::move(answer), fallback] {
    const auto num_released = core_->release_pins(fallback);
    if (!num_released.ok()) {
      answer->promise.set_value(num_released.status());
      return;
    }
    answer->value = *num_released;
    releases_.push_back(answer);
  };
  WARPROLL_TRY(post(std::move(release), deadline));
  return wait_for(std::move(future), deadline, "the release of pinned sequences");
}

int32_t Engine::pinned_sequences() const { return stats().pinned_sequences; }

EngineStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

size_t Engine::num_outstanding() const {
  const std::lock_guard lock(mutex_);
  return outstanding_.size();
}

Status Engine::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

Status Engine::post(Command command, Clock::time_point deadline) {
  switch (commands_.push(command, deadline)) {
    case QueueResult::kOk:
      return ok_status();
    case QueueResult::kTimeout:
      return unavailable("engine: its command queue of " + std::to_string(commands_.capacity()) +
                         " stayed full");
    case QueueResult::kClosed:
      break;
  }
  const Status reason = failure();
  return reason.ok() ? failed_precondition("engine: it is being stopped") : reason;
}

// ---- the engine thread ----

void Engine::run() {
  try {
    bool is_idle = false;
    while (!commands_.closed()) {
      drain_commands(is_idle);
      is_idle = !step();
      if (is_idle) gaps_.idle();
      for (GeneratedSample& sample : core_->take_finished()) deliver(std::move(sample));
      publish_stats();
      for (const auto& install : installs_) install->promise.set_value(install->value);
      for (const auto& release : releases_) release->promise.set_value(release->value);
      installs_.clear();
      releases_.clear();
    }
    fail(failed_precondition("it is being stopped"));
  } catch (const std::exception& error) {
    fail(internal_error(error.what()));
  }
}

void Engine::drain_commands(bool is_idle) {
  std::optional<Command> command =
      is_idle ? commands_.pop(Clock::now() + kIdleWait) : commands_.try_pop();
  while (command) {
    (*command)();
    command = commands_.try_pop();
  }
}

bool Engine::step() {
  const auto start = Clock::now();
  if (!core_->step(start)) return false;
  const auto gap_us = gaps_.step_ended(start, Clock::now());
  if (!gap_us || installs_.empty()) return true;
  const uint64_t median_us = gaps_.median_step_us();
  const uint64_t stall_us = *gap_us > median_us ? *gap_us - median_us : 0;
  for (const auto& install : installs_) {
    install->value.stall_us = stall_us;
    install->value.stall_steps = static_cast<uint32_t>(median_us == 0 ? 0 : stall_us / median_us);
  }
  return true;
}

void Engine::deliver(GeneratedSample sample) {
  {
    const std::lock_guard lock(mutex_);
    outstanding_.at(sample.request_id).is_delivered = true;
  }
  // Outstanding requests are never more than its capacity, so only a closed queue refuses.
  static_cast<void>(finished_.try_push(sample));
}

void Engine::publish_stats() {
  const EngineStats stats = core_->stats();
  const std::lock_guard lock(mutex_);
  stats_ = stats;
}

// The core may be in any state here: it is not touched any more.
void Engine::fail(const Status& why) {
  const Status failure = why.with_context("engine");
  std::vector<uint64_t> lost;
  {
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    for (const auto& [request_id, state] : outstanding_) {
      if (!state.is_delivered) lost.push_back(request_id);
    }
  }
  commands_.close();
  for (const uint64_t request_id : lost) {
    GeneratedSample sample;
    sample.request_id = request_id;
    sample.finish_reason = FinishReason::kError;
    sample.error_type = kEngineFailure;
    sample.error_message = why.message();
    deliver(std::move(sample));
  }
  for (const auto& install : installs_) install->promise.set_value(failure);
  for (const auto& release : releases_) release->promise.set_value(failure);
  installs_.clear();
  releases_.clear();
  while (const auto command = commands_.try_pop()) {
  }
}

}  // namespace warproll
