#include "worker/node/worker_node.h"

#include <chrono>

#include "worker/terminal/stop_signal.h"

namespace warproll {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
constexpr milliseconds kHousekeeping(1000);
constexpr milliseconds kDrainPoll(10);

}  // namespace

WorkerNode::~WorkerNode() {
  const Status ended = shut_down();
  if (!ended.ok()) logger_.error(ended.message());
}

void WorkerNode::set_state(WorkerState state) {
  if (state_.exchange(state) == state) return;
  logger_.info("state " + std::string(to_string(state)));
  waker_.wake();
}

void WorkerNode::fail(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!fault_.ok()) return;
    fault_ = why;
  }
  logger_.error(why.message());
  if (StopSignal* stop = stop_.load()) stop->request();
}

Status WorkerNode::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

void WorkerNode::run_collector() {
  try {
    while (!collector_stop_) {
      const Status status = collector_->run_once(Clock::now() + milliseconds(50));
      if (!status.ok()) return fail(status.with_context("collector"));
    }
  } catch (const std::exception& error) {
    fail(internal_error(std::string("collector: ") + error.what()));
  }
}

void WorkerNode::housekeeping() {
  const Result<RetentionResult> retention = log_->apply_retention();
  if (!retention.ok()) logger_.warn("retention: " + retention.status().message());
  const Status engine = engine_->failure();
  if (!engine.ok()) fail(engine);
}

Status WorkerNode::run(StopSignal& stop) {
  stop_ = &stop;
  if (!fault().ok()) stop.request();  // it came before stop_ was set
  SteadyTime next_housekeeping = Clock::now();
  while (!stop.wait_until(Clock::now() + milliseconds(100)) && !drain_asked_) {
    if (Clock::now() < next_housekeeping) continue;
    housekeeping();
    next_housekeeping = Clock::now() + kHousekeeping;
  }
  if (fault().ok()) {
    say_bye_ = true;
    set_state(WorkerState::kDraining);
    drain(stop, Clock::now() + milliseconds(config_.drain_ms));
  }
  set_state(WorkerState::kStopping);
  const Status ended = shut_down();
  stop_ = nullptr;
  return fault().ok() ? ended : fault();
}

// First what runs becomes durable, then, if a trainer is there, it takes it. Waits on `stop`, so that a
// second signal ends the process.
void WorkerNode::drain(StopSignal& stop, SteadyTime deadline) {
  collector_->drain();
  while (!collector_->idle() && Clock::now() < deadline && fault().ok()) {
    stop.wait_until(Clock::now() + kDrainPoll);
  }
  if (!collector_->idle()) {
    logger_.warn(std::to_string(collector_->open_task_ids().size()) +
                 " tasks did not end within worker.drain_ms; the trainer issues them again");
  }
  while (!publisher_->drained() && io_streaming_ && Clock::now() < deadline && fault().ok()) {
    stop.wait_until(Clock::now() + kDrainPoll);
  }
  const CollectorStats stats = collector_->stats();
  logger_.info("drained: " + std::to_string(stats.samples_sealed) + " samples sealed, " +
               std::to_string(log_->last_seq() - log_->commit_upto()) +
               " not yet committed by the trainer");
}

// In reverse order of start; safe at any point of it.
Status WorkerNode::shut_down() {
  io_stop_ = true;  // first: the trainer hears BYE at once
  waker_.wake();
  if (io_thread_.joinable()) io_thread_.join();
  metrics_.reset();
  if (log_) log_->set_sealed_listener({});
  updates_.reset();  // cancels a receive that runs
  collector_stop_ = true;
  if (collector_thread_.joinable()) collector_thread_.join();
  engine_.reset();
  Status closed;
  if (log_) closed = log_->close().with_context("log");
  collector_.reset();
  publisher_.reset();
  log_.reset();
  return closed;
}

}  // namespace warproll
