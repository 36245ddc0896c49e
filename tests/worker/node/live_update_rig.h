// LiveUpdateRig: an Engine and an UpdateReceiver wired as WorkerNode wires them, a load generator
// that keeps the engine's queue full on a thread of its own, and a trainer whose transport, under
// load, stands still in the middle of each transfer until the engine has gone on by some steps.
// Thread: update() and stop() from the test's.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "protocol/bounded_queue.h"
#include "rollout/engine/engine.h"
#include "tests/weights_sync/update_fixtures.h"
#include "weights_sync/update_receiver.h"

namespace warproll {

// What the load made, and what was counted while it ran.
struct LiveLoad {
  std::map<uint64_t, SampleRequest> requests;
  std::map<uint64_t, GeneratedSample> samples;
  uint64_t steps = 0;
  uint64_t steps_with_empty_queue = 0;
  uint64_t steps_during_transfers = 0;
  uint64_t in_flight_at_flips = 0;  // sequences, summed over the flips
  uint64_t defers = 0;
};

// How many forward passes there were, for those who wait for more of them. Thread: any.
class StepCounter {
 public:
  void add() {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  [[nodiscard]] uint64_t count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  // False when it is not `count` yet at the deadline.
  bool wait_for(uint64_t count, std::chrono::steady_clock::time_point deadline) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline, [&] { return count_ >= count; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  uint64_t count_ = 0;
};

// Brings the bytes of a checkpoint; in the middle it can wait until the engine made kSteps steps.
class StandingTransport final : public BroadcastTransport {
 public:
  static constexpr uint64_t kSteps = 3;
  explicit StandingTransport(const StepCounter& steps) : steps_(steps) {}
  void bring(OfferedCheckpoint offered);
  void wait_for_steps() { waits_for_steps_ = true; }
  [[nodiscard]] std::string_view name() const override { return "standing"; }
  Status receive(const ReceiveRequest& request, const Manifest& manifest, const StreamSink& sink,
                 const Cancellation& cancellation) override;
  [[nodiscard]] uint64_t steps_during_transfers() const { return steps_during_; }

 private:
  const StepCounter& steps_;
  std::mutex mutex_;
  OfferedCheckpoint offered_;
  std::atomic<bool> waits_for_steps_{false};
  std::atomic<uint64_t> steps_during_{0};
};

class LiveUpdateRig {
 public:
  // Serves arith-v1 as version 1. Nothing runs yet.
  explicit LiveUpdateRig(InFlightPolicy policy);
  ~LiveUpdateRig();
  LiveUpdateRig(const LiveUpdateRig&) = delete;
  LiveUpdateRig& operator=(const LiveUpdateRig&) = delete;

  void start_load(int32_t tokens_per_sample);
  // A whole update, deferred as long as pins want it. Nothing = it failed, with a test failure.
  std::optional<UpdateReady> update(const OfferedCheckpoint& offered);
  // Begin and Start; the worker's last answer to it, Ready or Failed or Reject.
  std::optional<Message> stage(const OfferedCheckpoint& offered);
  // Ends the load; every sample that was submitted is in what comes back.
  LiveLoad stop();

  [[nodiscard]] Engine& engine() { return *engine_; }
  [[nodiscard]] StagedWeightsPtr serving() const { return receiver_->serving(); }
  [[nodiscard]] const UpdateReceiver& receiver() const { return *receiver_; }
  [[nodiscard]] const StepCounter& steps() const { return steps_; }
  [[nodiscard]] const std::vector<std::string>& alarms() const { return alarms_; }

 private:
  Result<InstallReport> install(const StagedWeightsPtr& staged);
  void before_step();
  void make_load(int32_t tokens_per_sample);
  void top_up(int32_t tokens_per_sample);
  void collect(std::chrono::steady_clock::time_point deadline);
  std::optional<Message> next_answer();

  const InFlightPolicy policy_;
  StepCounter steps_;
  StepCounter top_ups_;
  std::atomic<uint64_t> steps_with_empty_queue_{0};
  std::atomic<bool> loaded_{false};
  std::atomic<bool> stopping_{false};
  StandingTransport transport_{steps_};
  BoundedQueue<Message> answers_{1024};
  std::vector<std::string> alarms_;
  std::atomic<Engine*> engine_for_steps_{nullptr};
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<UpdateReceiver> receiver_;  // goes before the engine
  std::thread load_thread_;
  LiveLoad load_;  // requests and samples: the load thread's until it is joined
  uint64_t next_id_ = 1;
  uint32_t attempt_ = 0;
};

}  // namespace warproll
