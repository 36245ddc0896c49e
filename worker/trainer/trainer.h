// Trainer: the reference trainer, a thin program over the trainer's half of the libraries: task
// leases, trajectory receiver and broadcaster on one io thread. It issues tasks, publishes
// checkpoints in order, takes trajectories into its store and a JSONL file, and shows what happens.
// Thread: create() and run() from one.
#pragma once

#include <memory>
#include <string>

#include "protocol/curve.h"
#include "protocol/sockets.h"
#include "protocol/status.h"
#include "rollout/stream/trainer_stream.h"
#include "weights_sync/broadcaster.h"
#include "worker/config/trainer_config.h"
#include "worker/terminal/logging.h"
#include "worker/trainer/checkpoint_publisher.h"
#include "worker/trainer/run_statistics.h"
#include "worker/trainer/task_feeder.h"
#include "worker/trainer/update_table.h"

namespace warproll {

class StopSignal;

class Trainer {
 public:
  // Every part opened, the socket bound. Errors name the key or file.
  static Result<std::unique_ptr<Trainer>> create(const TrainerConfig& config, Logger logger);

  // Until the work is done or a stop is asked for. Afterwards everything taken is on disk, in the
  // JSONL file and acknowledged. A failing disk is retried, and said, until it works or stop.
  Status run(StopSignal& stop);

  [[nodiscard]] const std::string& endpoint() const { return socket_->endpoint(); }
  // Tables for people: reward by weight_version, updates, counts.
  [[nodiscard]] std::string report() const;

 private:
  Trainer(const TrainerConfig& config, Logger logger);
  Status open_socket();
  Status open_parts();
  void receive(SteadyTime deadline);
  void handle(Received received, SteadyTime now);
  Status advance(SteadyTime now);
  void advance_fleet(SteadyTime now);
  void send_outgoing();
  Status count_taken();
  [[nodiscard]] bool finished() const;
  void say_goodbye();
  void show_progress(SteadyTime now, bool at_end);
  Status write_summary() const;
  [[nodiscard]] int64_t now_ms(SteadyTime now) const;

  const TrainerConfig config_;
  const Logger logger_;
  const SteadyTime started_;
  ZmqContext context_;
  std::unique_ptr<CurveAllowList> allow_list_;
  std::optional<CurveServer> curve_;
  std::optional<TrainerSocket> socket_;
  std::unique_ptr<TrainerStream> stream_;
  std::unique_ptr<Broadcaster> broadcaster_;
  std::unique_ptr<CheckpointPublisher> publisher_;
  std::unique_ptr<TaskFeeder> feeder_;
  RunStatistics statistics_;
  UpdateTable updates_;
  uint64_t counted_ = 0;        // take_index of the next trajectory to count
  uint64_t tokens_before_ = 0;  // of earlier runs on the same state directory
  uint64_t failed_tasks_ = 0;
  SteadyTime next_show_{};
  SteadyTime last_failure_shown_{};
};

}  // namespace warproll
