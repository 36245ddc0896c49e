// Collector: tasks in, sealed trajectories out. It answers every TASK, makes n samples of it that
// share one prompt, and appends whatever comes of each to the sample log: finished, cut off, failed
// or aborted. Nothing it has accepted vanishes.
//
//   offer() -> intake queue -> checks, tokenizer -> TokenGenerator -> poll -> SampleLog::append
//      |            full: kBusy     kRejected + why                     refused as invalid: sealed
//      '-> answers: take_answers()                                      as an error record
//
// One sample:  waiting (generator full) -> generating -> unsealed (log takes none) -> sealing -> gone
// A task is held from offer() until its last sample is durable; S12: a TASK for a held one is
// answered kAlreadyHeld, for one whose samples are all in the log kAlreadySealed, and only the
// sample_indices that are neither are made.
// While the log takes no samples (disk full), finished ones wait here and new tasks get kBusy.
//
// Thread: offer, cancel, set_paused, drain, take_answers, load, open_task_ids, stats from any;
// run_once from one, the collector's thread, which the process drives:
//   while (!stopping) collector.run_once(now + 50 ms)
// It blocks in the generator's poll or on the intake queue, never beyond its deadline.
// Lifetime: generator and log outlive it. Samples that the log has not made durable when the
// collector goes are still the log's to write.
// Errors: run_once returns a Status only when something that must not happen happened: a sample
// could not even be sealed as a failure, or the generator has failed. Then no task is rejected and
// nothing is sealed for it: the worker ends, and the trainer gives its tasks to another.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "protocol/bounded_queue.h"
#include "protocol/messages.h"
#include "protocol/status.h"
#include "rollout/collector/prompt_encoder.h"
#include "rollout/collector/trajectory_builder.h"
#include "rollout/token_generator.h"

namespace warproll {

class SampleLog;

struct CollectorOptions {
  size_t intake_tasks = 64;         // offered and not yet looked at
  uint32_t max_open_samples = 512;  // held and not yet sealed
  int32_t vocab_size = 0;           // of the model; 0 = unknown
  int32_t max_context_tokens = 0;   // prompt + at least one sampled token; 0 = unknown
  std::string pin_refusal;          // why in_flight = pin cannot be had; empty = it can
  uint32_t poll_ms = 5;             // longest wait for the generator while tasks may come in
  ModelIdentity identity;
};

struct CollectorLoad {           // for Heartbeat
  uint32_t queued_samples = 0;   // offered or waiting for the generator
  uint32_t running_samples = 0;  // everything else that is held
  uint32_t free_task_slots = 0;
};

struct CollectorStats {
  uint64_t tasks_accepted = 0;
  uint64_t tasks_already_held = 0;
  uint64_t tasks_already_sealed = 0;
  uint64_t tasks_rejected = 0;
  uint64_t tasks_busy = 0;
  uint64_t samples_started = 0;
  uint64_t samples_sealed = 0;
  uint64_t samples_failed = 0;    // sealed with kError
  uint64_t samples_aborted = 0;   // sealed with kAbort
  uint64_t samples_invalid = 0;   // refused by validate(), sealed as errors
  uint64_t samples_unsealed = 0;  // given up by the log at its close; the trainer reissues them
  uint64_t sampled_tokens = 0;
  uint64_t unsealed_waiting = 0;  // now
  std::string last_rejection;
};

class Collector {
 public:
  using Clock = std::chrono::steady_clock;

  // `on_answer` (may be empty) is called from the thread that caused an answer: wakes the io loop.
  Collector(TokenGenerator& generator, SampleLog& log, PromptEncoder encoder,
            CollectorOptions options, std::function<void()> on_answer = {});
  ~Collector();
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

  void offer(TaskMessage message);
  void cancel(const Cancel& cancel);
  void set_paused(bool paused);  // new tasks get kBusy; what is held goes on
  void drain();                  // the same, for good
  std::vector<TaskAck> take_answers();
  [[nodiscard]] CollectorLoad load() const;
  [[nodiscard]] std::vector<std::string> open_task_ids() const;
  [[nodiscard]] bool idle() const;  // nothing is held
  [[nodiscard]] CollectorStats stats() const;

  Status run_once(Clock::time_point deadline);

 private:
  struct Offered {
    TaskMessage message;
    int64_t received_ns = 0;
    Clock::time_point received_at;
  };
  struct Sample {
    std::shared_ptr<const HeldTask> held;
    int32_t sample_index = 0;
    uint64_t request_id = 0;
    bool submitted = false;
  };
  struct SealResult {
    uint64_t request_id = 0;
    FinishReason finish_reason = FinishReason::kStop;
    uint64_t sampled_tokens = 0;
    bool durable = false;
  };
  // Where the log's writer thread reports; shared, because it may outlive the collector.
  struct SealMailbox {
    std::mutex mutex;
    std::vector<SealResult> results;
  };
  struct TaskRecord {
    std::shared_ptr<const HeldTask> held;
    std::map<int32_t, uint64_t> request_ids;  // by sample_index
  };

  struct Wanted {
    std::vector<int32_t> missing;  // neither held nor sealed
    size_t num_held = 0;
  };
  TaskAck answer(const Offered& offered);
  TaskAck answer_new(const Offered& offered, const Wanted& wanted, TaskAck ack);
  Result<Wanted> wanted_of(const Task& task) const;
  Result<std::shared_ptr<const HeldTask>> hold(const Offered& offered) const;
  std::string busy_reason(size_t num_samples) const;
  Status start(const std::shared_ptr<const HeldTask>& held, const std::vector<int32_t>& indices);
  bool take_offers(Clock::time_point deadline);
  void submit_waiting();
  [[nodiscard]] bool is_refusal(const Status& submitted) const;
  SampleRequest request_for(const Sample& sample) const;
  void apply_cancels();
  void end_unsubmitted(uint64_t request_id, FinishReason reason, const std::string& error_type,
                       const std::string& message);
  Status seal_finished();
  Result<bool> seal(const GeneratedSample& generated);
  Status append(uint64_t request_id, Trajectory trajectory);
  void collect_seal_results();
  void reply(TaskAck ack);
  void forget(const std::string& task_id, uint32_t count);  // of held_; mutex_ is held
  void publish_load();

  TokenGenerator& generator_;
  SampleLog& log_;
  const PromptEncoder encoder_;
  const CollectorOptions options_;
  const std::function<void()> on_answer_;
  BoundedQueue<Offered> intake_;
  const std::shared_ptr<SealMailbox> mailbox_ = std::make_shared<SealMailbox>();

  // Of the collector's thread:
  std::map<std::string, TaskRecord> tasks_;
  std::map<uint64_t, Sample> samples_;  // by request_id, until sealed
  std::deque<uint64_t> waiting_;        // request ids the generator had no room for
  std::deque<GeneratedSample> unsealed_;
  uint64_t next_request_id_ = 1;

  mutable std::mutex mutex_;
  std::vector<TaskAck> answers_;
  std::vector<Cancel> cancels_;
  std::map<std::string, uint32_t> held_;  // task_id -> offers in the queue + samples
  std::string busy_because_;              // the log takes none
  bool paused_ = false;
  bool draining_ = false;
  uint32_t offered_samples_ = 0;
  uint32_t waiting_samples_ = 0;
  uint32_t open_samples_ = 0;
  CollectorStats stats_;
};

}  // namespace warproll
