// SyncWorker: a worker that decodes without end while a Broadcaster brings it updates, all in one
// process: the real engine, update receiver and state machines, messages handed over directly.
// Thread: one; the engine and the receiver have theirs.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "protocol/bounded_queue.h"
#include "protocol/messages.h"
#include "protocol/status.h"
#include "rollout/engine/engine.h"
#include "weights_sync/broadcaster.h"
#include "weights_sync/update_receiver.h"
#include "worker/commands/bench_sync_feed.h"
#include "worker/commands/bench_sync_steps.h"
#include "worker/node/model_device.h"
#include "worker/node/serving_model.h"

namespace warproll {

class StopSignal;

class SyncMate;

struct SyncWorkerOptions {
  int32_t index = 0;  // of the worker
  RandomModel model;  // served at the start: drawn from its seed
  bool quantise_to_mxfp8 = false;
  std::string swap = "auto";
  int32_t batch = 8;
  int32_t context = 2048;  // prompt tokens of each sequence
  // That it then has room for; it starts anew after them. 0 = as many as there are before the step's
  // block tables get wider: a GPU's backend captures new graphs then, which is a stall of its own.
  int32_t tokens = 0;
  int32_t max_batch_tokens = 512;
  int32_t deadline_ms = 120'000;  // of an update
};

// Who the messages of a worker are from and to.
Envelope envelope_of(int32_t worker_index);

struct SyncUpdate {  // what one update took
  using TimePoint = std::chrono::steady_clock::time_point;
  TimePoint begun, accepted, ready, committed;
  ReceiveTimes receive;
  Digest weight_digest{}, layout_digest{};  // of UpdateReady
  uint64_t flip_us = 0;                     // the stall that the worker itself reports
  uint32_t in_flight_sequences = 0;
  int32_t restarted_sequences = 0;  // that ended meanwhile: each costs a prefill
};

struct ColdDigests {
  Digest weight{}, layout{};
};

class SyncWorker {
 public:
  // Fills an arena from a seed: a cold start under that version.
  using ColdLoad = std::function<Result<StagedWeightsPtr>(
      uint64_t weight_version, uint64_t seed, const LayoutFunction& layout, WeightArenas& arenas)>;

  // `transport` and `stop` outlive it. other_seed is loaded too, for its digests, then thrown away.
  static Result<std::unique_ptr<SyncWorker>> start(const SyncWorkerOptions& options,
                                                   ModelDevice device, const ColdLoad& load,
                                                   uint64_t other_seed, TimedTransport& transport,
                                                   StopSignal& stop);
  ~SyncWorker();
  SyncWorker(const SyncWorker&) = delete;
  SyncWorker& operator=(const SyncWorker&) = delete;

  // Nothing decodes any more.
  Status stop_decoding();
  // The sequences begin anew, and decode when it returns.
  Status start_decoding();
  // Lets the worker run until then.
  Status run_until(std::chrono::steady_clock::time_point until);
  // Until every worker serves it. An update that fails ends as its reason.
  Result<SyncUpdate> update(UpdateOffer offer);

  // Returns when what is left of the last update's group has ended.
  void settle() { transport_.settle(); }

  // Further workers, which the updates go to as well. They outlive it.
  Status add_mate(SyncMate& mate);
  // Of a mate, in its own process: messages of the trainer's go in, its own come out, and sequences that
  // have ended begin anew.
  Status take_turn(const std::vector<Message>& messages, std::vector<Message>& answers);
  [[nodiscard]] Hello hello() const;
  [[nodiscard]] int32_t index() const { return options_.index; }
  [[nodiscard]] SyncUpdate last_update() const;

  [[nodiscard]] const StepLog& steps() const { return *steps_; }
  [[nodiscard]] ColdDigests cold_digests(uint64_t seed) const { return cold_.at(seed); }
  [[nodiscard]] bool host_staged() const { return device_.serving_arena != nullptr; }
  [[nodiscard]] bool on_gpu() const { return device_.on_gpu(); }
  [[nodiscard]] const std::string& memory_text() const { return memory_text_; }

 private:
  SyncWorker(const SyncWorkerOptions& options, ModelDevice device, TimedTransport& transport,
             StopSignal& stop);
  Status plan(const RandomCheckpoint& checkpoint);
  [[nodiscard]] EngineConfig engine_config() const;
  Status load(const ColdLoad& load, uint64_t other_seed);
  Status start_engine();
  Result<InstallReport> install(const StagedWeightsPtr& staged);
  Status submit_one();
  Status restart_ended();
  Status turn_of(SyncMate& mate);
  Status pump();  // one turn: messages both ways, sequences that ended
  void note(const Message& message);

  const SyncWorkerOptions options_;
  ModelDevice device_;
  TimedTransport& transport_;
  StopSignal& stop_;
  ModelConfig config_;
  std::string memory_text_;
  std::map<uint64_t, ColdDigests> cold_;  // by seed
  std::shared_ptr<StepLog> steps_ = std::make_shared<StepLog>();
  std::function<void(const WeightSet&)> prepare_weights_;
  std::unique_ptr<Engine> engine_;
  BoundedQueue<Message> from_worker_{256};
  Broadcaster broadcaster_;
  const Envelope worker_;
  std::unique_ptr<UpdateReceiver> receiver_;  // after what it calls
  std::vector<SyncMate*> mates_;
  std::map<ProducerId, std::vector<Message>> for_mates_;
  bool decoding_ = false;
  uint64_t last_request_id_ = 0;
  SyncUpdate current_;
  UpdateId begun_;       // of a mate: what current_ is about
  std::string failure_;  // of the current update: what the worker said last
};

}  // namespace warproll
