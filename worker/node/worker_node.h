// WorkerNode: the worker process. It builds the parts in dependency order (this header is the parts
// list), runs the io loop, and takes them down in reverse order.
//
//   UpdateReceiver  serving weights, updates      Engine     steps the model
//   SampleLog       durable trajectories          Collector  tasks in, trajectories out
//   Publisher       the stream to the trainer     io loop    owns the socket, drives the publisher
//
// States: starting -> serving <-> paused -> draining (SIGTERM or DRAIN) -> stopping. Draining makes
// no new samples, finishes what runs, sends what is sealed, says BYE; after drain_ms it says BYE
// with what is left, which the trainer then issues elsewhere.
// Thread: start() and run() from main.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "protocol/bounded_queue.h"
#include "protocol/sockets.h"
#include "protocol/status.h"
#include "rollout/collector/collector.h"
#include "rollout/engine/engine.h"
#include "rollout/sample_log/sample_log.h"
#include "rollout/stream/publisher.h"
#include "weights_sync/update_receiver.h"
#include "worker/config/worker_config.h"
#include "worker/node/metrics_server.h"
#include "worker/node/model_device.h"
#include "worker/node/serving_model.h"
#include "worker/terminal/logging.h"

namespace warproll {

class StopSignal;

class WorkerNode {
 public:
  // Everything loaded, opened and running. Errors name the file, key or address.
  static Result<std::unique_ptr<WorkerNode>> start(const WorkerConfig& config, Logger logger);
  ~WorkerNode();
  WorkerNode(const WorkerNode&) = delete;
  WorkerNode& operator=(const WorkerNode&) = delete;

  // Until `stop`, DRAIN or a fault; then drains and takes everything down. Ok = a clean end.
  Status run(StopSignal& stop);

 private:
  WorkerNode(const WorkerConfig& config, Logger logger);
  Status open_device();
  Status load_weights();
  Status start_engine();
  Status open_log();
  Status start_collector();
  Status start_stream();
  Status start_metrics();
  Result<InstallReport> install(const StagedWeightsPtr& staged);

  void run_collector();
  void run_io();
  void io_round(SteadyTime now);
  void handle(const Message& message, SteadyTime now);
  void send_outgoing(SteadyTime now);
  void reconnect_if_due(SteadyTime now);
  void publish_io_state();
  [[nodiscard]] Hello hello() const;
  [[nodiscard]] Heartbeat heartbeat() const;

  void housekeeping();
  void drain(StopSignal& stop, SteadyTime deadline);
  Status shut_down();
  void fail(const Status& why);  // the first fault wins; ends run()
  [[nodiscard]] Status fault() const;
  void set_state(WorkerState state);
  [[nodiscard]] std::vector<Metric> metrics() const;
  [[nodiscard]] Health health() const;

  const WorkerConfig config_;
  const Logger logger_;
  const std::string name_;
  std::atomic<WorkerState> state_{WorkerState::kStarting};

  ZmqContext context_;
  std::vector<std::unique_ptr<BroadcastTransport>> transports_;
  std::function<void(const WeightSet&)> prepare_weights_;  // of the engine's backend; may be null
  std::unique_ptr<Engine> engine_;  // before updates_: its install function uses it
  std::unique_ptr<UpdateReceiver> updates_;
  ModelConfig model_;
  ModelDevice device_;
  int32_t num_kv_blocks_ = 0;
  TextParts text_;
  ModelIdentity identity_;
  Digest model_config_digest_{};
  int32_t max_context_tokens_ = 0;  // prompt and response

  std::unique_ptr<SampleLog> log_;
  std::unique_ptr<Collector> collector_;
  std::atomic<bool> collector_stop_{false};
  std::thread collector_thread_;

  Waker waker_;                            // wakes the io loop
  BoundedQueue<Message> update_messages_;  // from the update's protocol thread to the io loop
  std::optional<WorkerSocket> socket_;     // the io loop's
  std::unique_ptr<Publisher> publisher_;   // the io loop's
  std::atomic<bool> io_stop_{false};
  std::atomic<bool> say_bye_{false};
  std::thread io_thread_;
  std::unique_ptr<MetricsServer> metrics_;

  std::atomic<bool> drain_asked_{false};
  std::atomic<bool> io_streaming_{false};
  std::atomic<StopSignal*> stop_{nullptr};
  mutable std::mutex mutex_;
  PublisherStats publisher_stats_;  // as of the last io round
  Status fault_;
  std::string last_alarm_;
  uint64_t alarms_ = 0;
};

}  // namespace warproll
