// What a WorkerNode tells about itself over HTTP.
#include <nlohmann/json.hpp>

#include "worker/node/worker_node.h"

namespace warproll {
namespace {

class MetricList {
 public:
  void counter(const char* name, const char* help, double value) {
    metrics_.push_back({name, help, MetricType::kCounter, value, {}});
  }
  void gauge(const char* name, const char* help, double value,
             std::vector<std::pair<std::string, std::string>> labels = {}) {
    metrics_.push_back({name, help, MetricType::kGauge, value, std::move(labels)});
  }
  std::vector<Metric> take() { return std::move(metrics_); }

 private:
  std::vector<Metric> metrics_;
};

void add_engine(MetricList& list, const EngineStats& stats) {
  list.counter("warproll_steps_total", "Engine steps.", static_cast<double>(stats.num_steps));
  list.counter("warproll_step_seconds_total", "Time spent in steps.",
               static_cast<double>(stats.step_time_sum_us) * 1e-6);
  list.counter("warproll_sampled_tokens_total", "Tokens sampled.",
               static_cast<double>(stats.sampled_tokens));
  list.counter("warproll_forwarded_tokens_total", "Tokens forwarded: prefill, decode, recompute.",
               static_cast<double>(stats.forwarded_tokens));
  list.counter("warproll_preemptions_total", "Sequences preempted for lack of KV blocks.",
               static_cast<double>(stats.num_preemptions));
  list.counter("warproll_prompt_hits_total", "Samples that shared a prefilled prompt.",
               static_cast<double>(stats.num_prompt_hits));
  list.counter("warproll_flips_total", "Weight swaps.", static_cast<double>(stats.num_flips));
  list.gauge("warproll_running_sequences", "Sequences that hold KV blocks.",
             stats.running_sequences);
  list.gauge("warproll_waiting_sequences", "Sequences waiting for KV blocks.",
             stats.waiting_sequences);
  list.gauge("warproll_pinned_sequences", "Sequences on weights that are not current.",
             stats.pinned_sequences);
  list.gauge("warproll_kv_blocks_free", "Free KV blocks.", stats.free_blocks);
  list.gauge("warproll_kv_blocks", "KV blocks in all.", stats.total_blocks);
  list.gauge("warproll_weight_version", "Version the engine serves.",
             static_cast<double>(stats.weight_version));
}

void add_log(MetricList& list, const SampleLog& log) {
  const SampleLogStats stats = log.stats();
  list.counter("warproll_sealed_samples_total", "Samples made durable by this process.",
               static_cast<double>(stats.sealed_samples));
  list.counter("warproll_sealed_bytes_total", "Their size.",
               static_cast<double>(stats.sealed_bytes));
  list.counter("warproll_log_write_failures_total", "Failed log writes.",
               static_cast<double>(stats.write_failures));
  list.counter("warproll_log_write_stalls_total", "Times RocksDB slowed or stopped writes.",
               static_cast<double>(stats.write_stalls));
  list.counter("warproll_log_pauses_total", "Times intake was paused.",
               static_cast<double>(stats.pauses));
  list.counter("warproll_log_reopens_total", "Times the database was opened again after failures.",
               static_cast<double>(stats.reopens));
  list.gauge("warproll_log_queued_samples", "Samples waiting to be written.",
             static_cast<double>(stats.queued_samples));
  list.gauge("warproll_log_paused", "1 while intake is paused (disk full).",
             stats.intake == IntakeState::kPaused ? 1 : 0);
  list.gauge("warproll_log_free_bytes", "Free space of the log's file system.",
             static_cast<double>(stats.free_bytes));
  const Result<Accounting> accounting = log.accounting();
  if (!accounting.ok()) return;
  const char* help = "Where every sequence number ever given out is (S9).";
  list.gauge("warproll_log_samples", help, static_cast<double>(accounting->produced),
             {{"place", "produced"}});
  list.gauge("warproll_log_samples", help, static_cast<double>(accounting->committed),
             {{"place", "committed"}});
  list.gauge("warproll_log_samples", help, static_cast<double>(accounting->outbox),
             {{"place", "outbox"}});
  list.gauge("warproll_log_samples", help, static_cast<double>(accounting->dead_letters),
             {{"place", "dead_letters"}});
  list.gauge("warproll_log_samples", help, static_cast<double>(accounting->gaps),
             {{"place", "gaps"}});
}

void add_collector(MetricList& list, const CollectorStats& stats) {
  list.counter("warproll_tasks_accepted_total", "Tasks accepted.",
               static_cast<double>(stats.tasks_accepted));
  list.counter("warproll_tasks_rejected_total", "Tasks rejected as wrong.",
               static_cast<double>(stats.tasks_rejected));
  list.counter("warproll_tasks_busy_total", "Tasks answered busy.",
               static_cast<double>(stats.tasks_busy));
  list.counter("warproll_samples_failed_total", "Samples sealed as error.",
               static_cast<double>(stats.samples_failed));
  list.counter("warproll_samples_aborted_total", "Samples sealed as abort.",
               static_cast<double>(stats.samples_aborted));
}

void add_publisher(MetricList& list, const PublisherStats& stats) {
  list.counter("warproll_sent_messages_total", "Trajectories sent, resends included.",
               static_cast<double>(stats.sent_messages));
  list.counter("warproll_sent_bytes_total", "Their size.", static_cast<double>(stats.sent_bytes));
  list.counter("warproll_resends_total", "Times the stream went back.",
               static_cast<double>(stats.resends));
  list.counter("warproll_nacks_total", "Trajectories refused by the trainer.",
               static_cast<double>(stats.nacks));
  list.counter("warproll_reconnects_total", "New connections to the trainer.",
               static_cast<double>(stats.reconnects));
  list.gauge("warproll_in_flight_messages", "Sent and not committed.",
             static_cast<double>(stats.in_flight_messages));
}

void add_updates(MetricList& list, const UpdateReceiverStats& stats,
                 const UpdateProgress& progress) {
  list.gauge("warproll_update_progress_bytes", "Received of the update under way, 0 = none is.",
             static_cast<double>(progress.received_bytes));
  list.gauge("warproll_update_total_bytes", "Size of the update under way, 0 = none is.",
             static_cast<double>(progress.total_bytes));
  list.counter("warproll_updates_committed_total", "Weight updates committed.",
               static_cast<double>(stats.protocol.committed));
  list.counter("warproll_updates_failed_total", "Weight updates failed before the commit.",
               static_cast<double>(stats.protocol.failed));
  list.counter("warproll_updates_rejected_total", "Weight updates that did not fit.",
               static_cast<double>(stats.protocol.rejected));
  list.counter("warproll_updates_received_bytes_total", "Checkpoint bytes received.",
               static_cast<double>(stats.received_bytes));
  list.gauge("warproll_arena_bytes", "Memory of both weight arenas.",
             static_cast<double>(stats.arena_bytes));
  list.counter("warproll_same_digest_alarms_total", "New versions with the serving digest.",
               static_cast<double>(stats.protocol.same_digest_alarms));
}

}  // namespace

std::vector<Metric> WorkerNode::metrics() const {
  MetricList list;
  add_engine(list, engine_->stats());
  add_log(list, *log_);
  add_collector(list, collector_->stats());
  PublisherStats publisher;
  {
    const std::lock_guard lock(mutex_);
    publisher = publisher_stats_;
  }
  add_publisher(list, publisher);
  add_updates(list, updates_->stats(), updates_->progress());
  list.gauge("warproll_connected", "1 while the trainer is heard.", io_streaming_ ? 1 : 0);
  return list.take();
}

Health WorkerNode::health() const {
  const WeightStatus weights = updates_->weight_status();
  const SampleLogStats log = log_->stats();
  const Status engine = engine_->failure();
  nlohmann::ordered_json body = {{"state", to_string(state_.load())},
                                 {"connected", io_streaming_.load()},
                                 {"weight_version", weights.serving_version},
                                 {"weight_digest", to_hex(weights.serving_digest)},
                                 {"update_state", to_string(weights.update_state)},
                                 {"log_intake", to_string(log.intake)}};
  const UpdateProgress update = updates_->progress();
  if (update.weight_version != 0) {
    body["update_weight_version"] = update.weight_version;
    body["update_received_bytes"] = update.received_bytes;
    body["update_total_bytes"] = update.total_bytes;
  }
  const std::string update_failure = updates_->stats().last_failure;
  if (!update_failure.empty()) body["last_update_failure"] = update_failure;
  if (!log.pause_reason.empty()) body["log_pause_reason"] = log.pause_reason;
  if (!engine.ok()) body["engine_failure"] = engine.message();
  {
    const std::lock_guard lock(mutex_);
    if (!last_alarm_.empty()) body["last_alarm"] = last_alarm_;
    if (!fault_.ok()) body["fault"] = fault_.message();
  }
  const WorkerState state = state_;
  const bool healthy = engine.ok() && log.intake == IntakeState::kOpen &&
                       (state == WorkerState::kServing || state == WorkerState::kPaused);
  return {healthy, body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)};
}

}  // namespace warproll
