// UpdateReceiver: the worker's half of weight updates. It runs the protocol core
// (update_state_machine.h) on a thread of its own and the work - checking, receiving, verifying,
// installing - on another, so that no caller ever waits for a transfer.
//
// The worker's io thread passes the trainer's messages in (handle) and sends what comes out
// (options.send); heartbeats carry weight_status(). The engine is met in one place: options.install
// flips it between two steps.
//
// Any failure before the flip leaves the old version serving, its reason goes to the trainer and to
// stats(), and the receiver is ready for the next update (W2).
// Thread: handle, set_trainer_epoch, weight_status, progress, stats, serving from any; load_initial
// before start. The callbacks say where they run; none may call back into the receiver's handle()
// and wait for its effect. Lifetime: transports outlive it; destroying it cancels what runs and
// joins.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "protocol/messages.h"
#include "protocol/status.h"
#include "weights_sync/broadcast_transport.h"
#include "weights_sync/update_state_machine.h"
#include "weights_sync/weight_arenas.h"
#include "weights_sync/weight_staging.h"

namespace warproll {

// Makes the engine run on `weights`, from one step to the next, and says what that cost. The engine
// keeps the pointer for as long as anything may read the arena. Not ok: the engine runs on as
// before. Also called with the previous version, for a rollback.
using InstallFunction = std::function<Result<InstallReport>(const StagedWeightsPtr& weights)>;

// A cold start that does not come from a directory: fills and publishes an arena of `arenas`.
using InitialLoad = std::function<Result<StagedWeightsPtr>(WeightArenas& arenas)>;

struct UpdateReceiverOptions {
  UpdateStateMachineOptions protocol;
  LayoutFunction layout;    // on the work thread; also refuses a model the engine cannot switch to
  InstallFunction install;  // on the work thread; has to return within a few steps
  std::function<void(const Message&)> send;  // on the protocol thread; must not block
  std::vector<BroadcastTransport*> transports;
  uint64_t max_arena_bytes = 0;  // of each arena, 0 = no limit
  ArenaDevicePtr device;         // where the arenas are (`layout` is for that), null = host memory

  // Optional:
  GoldenGateFunction golden_gate;  // on the work thread; without it a manifest with golden prompts
                                   // is rejected
  // How many sequences are pinned to a version, for UpdateDefer; without it, how many pointers.
  std::function<uint32_t(uint64_t weight_version)> pinned_sequences;  // on the work thread
  std::function<void(uint64_t weight_version)> pin_fallback;  // on the protocol thread: the pinned
                                                              // sequences of it must let go now
  std::function<void(const std::string& text)> alarm;         // on the protocol thread; for the log
};

struct UpdateProgress {         // of the receive under way
  uint64_t weight_version = 0;  // 0 = none
  uint64_t received_bytes = 0;
  uint64_t total_bytes = 0;
};
struct UpdateReceiverStats {
  UpdateStateMachineStats protocol;
  uint64_t dropped_messages = 0;  // the queue was full; the trainer restates them
  uint64_t received_bytes = 0;    // since the start
  uint64_t arena_bytes = 0;       // allocated, both arenas
  std::string last_failure;       // reason of the last Reject or Failed
};

class UpdateReceiver {
 public:
  explicit UpdateReceiver(UpdateReceiverOptions options);
  UpdateReceiver(const UpdateReceiver&) = delete;
  UpdateReceiver& operator=(const UpdateReceiver&) = delete;
  ~UpdateReceiver();

  // Cold start: fills an arena from a checkpoint directory by the same path and takes it as
  // serving. The caller builds the engine on it; install is not called. Before start(), once.
  Result<StagedWeightsPtr> load_initial(const std::string& directory, uint64_t weight_version,
                                        const ByteProgress& progress = {});
  Result<StagedWeightsPtr> load_initial(const InitialLoad& load);
  // Without load_initial the worker serves nothing (version 0) until the first update.
  void start();

  void handle(const Message& message);             // from the trainer; never blocks
  void set_trainer_epoch(uint64_t trainer_epoch);  // of Welcome and Heartbeat; never blocks

  [[nodiscard]] WeightStatus weight_status() const;
  [[nodiscard]] UpdateProgress progress() const;
  [[nodiscard]] UpdateReceiverStats stats() const;
  [[nodiscard]] StagedWeightsPtr serving() const;
  [[nodiscard]] std::vector<std::string> transport_names() const;  // for HELLO

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace warproll
