// Engine: an EngineCore on a thread of its own; the worker's TokenGenerator.
// Other threads reach it through one bounded command queue that it drains between two steps, and
// take finished samples from another. A swap of weights waits for the step that runs, nothing else.
//
// Back-pressure: a request counts from submit() until its sample was polled; at
// max_queued_requests of them submit() says kUnavailable. So both queues always have room.
// Errors: an exception inside a step (a broken invariant, no memory) ends the engine: every
// outstanding sample ends as kError "engine_failure" without its tokens, failure() says why
// (kInternal), and submit() refuses with that.
// Lifetime: the destructor stops the thread after the current step; samples not polled are gone.
// Thread: every method from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "protocol/bounded_queue.h"
#include "rollout/engine/engine_core.h"
#include "rollout/engine/engine_stats.h"
#include "rollout/engine/step_gaps.h"
#include "rollout/token_generator.h"

namespace warproll {

// What a swap of weights cost those who were generating.
struct SwapReport {
  uint64_t stall_us = 0;     // the gap between the ends of two steps around the flip, less the
                             // median step; 0 when nothing ran
  uint32_t stall_steps = 0;  // median steps that would have fitted into stall_us
  uint32_t in_flight_sequences = 0;  // started and not finished at the flip
};

class Engine : public TokenGenerator {
 public:
  static Result<std::unique_ptr<Engine>> create(EngineParts parts);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Status submit(SampleRequest request) override;
  void cancel(uint64_t request_id, const std::string& reason) override;
  std::vector<GeneratedSample> poll(std::chrono::steady_clock::time_point deadline) override;

  // Takes effect between two steps; returns after the step behind the flip (at once when idle).
  // `before_flip` runs then, on the engine's thread, when no step is under way; empty = nothing.
  // kDeadlineExceeded: not seen to take effect in time, it still will (a step takes very long).
  Result<SwapReport> install_weights(WeightSetPtr weights,
                                     std::chrono::steady_clock::time_point deadline,
                                     std::function<void()> before_flip = {});
  // Started sequences that run under weights that are not the current ones.
  [[nodiscard]] int32_t pinned_sequences() const;
  // They flip to the current weights, as `fallback` (not pin) says. Gives their number.
  Result<int32_t> release_pins(InFlightPolicy fallback,
                               std::chrono::steady_clock::time_point deadline);

  // As of the end of the last step.
  [[nodiscard]] EngineStats stats() const;
  // Requests submitted and not yet polled.
  [[nodiscard]] size_t num_outstanding() const;
  [[nodiscard]] Status failure() const override;

 private:
  using Clock = std::chrono::steady_clock;
  using Command = std::function<void()>;  // runs on the engine thread, between two steps
  struct Outstanding {
    bool is_cancelling = false;  // one cancel command a request
    bool is_delivered = false;   // its sample is in finished_
  };
  template <typename T>
  struct Answer;  // of a command, given once the stats that show its effect are published

  explicit Engine(std::unique_ptr<EngineCore> core, const EngineConfig& config);
  Status post(Command command, Clock::time_point deadline);
  void run();
  void drain_commands(bool is_idle);
  bool step();
  void deliver(GeneratedSample sample);
  void publish_stats();
  void fail(const Status& why);

  const size_t max_outstanding_;
  BoundedQueue<Command> commands_;
  BoundedQueue<GeneratedSample> finished_;

  // The engine thread's (core_->check() is any thread's).
  const std::unique_ptr<EngineCore> core_;
  StepGaps gaps_;
  std::vector<std::shared_ptr<Answer<SwapReport>>> installs_;
  std::vector<std::shared_ptr<Answer<int32_t>>> releases_;

  mutable std::mutex mutex_;
  std::map<uint64_t, Outstanding> outstanding_;  // by request id; erased when polled
  EngineStats stats_;
  Status failure_;

  std::thread thread_;
};

}  // namespace warproll
