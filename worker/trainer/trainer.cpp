#include "worker/trainer/trainer.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "protocol/codec.h"
#include "weights_sync/checkpoint_writer.h"
#include "worker/terminal/stop_signal.h"
#include "worker/terminal/table.h"

namespace warproll {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kRound(5);         // longest wait for a message
constexpr size_t kMessagesARound = 4096;  // then the store is flushed
constexpr milliseconds kShowEvery(2000);
constexpr milliseconds kGoodbye(1000);  // last acknowledgements get so long to leave

bool is_warning(BroadcastEventKind kind) {
  return kind == BroadcastEventKind::kWorkerLost || kind == BroadcastEventKind::kWorkerRejected ||
         kind == BroadcastEventKind::kWorkerFailed || kind == BroadcastEventKind::kAborted;
}

// A replay is a producer of trajectories, but no worker of the fleet.
bool takes_weights(const Hello& hello) { return !hello.transports.empty(); }

}  // namespace

int64_t Trainer::now_ms(SteadyTime now) const {
  return std::chrono::duration_cast<milliseconds>(now - started_).count();
}

void Trainer::handle(Received received, SteadyTime now) {
  if (!received.message.ok()) {
    logger_.warn("malformed message: " + received.message.status().message());
    stream_->receiver().on_malformed(received.peer, received.envelope, received.message.status());
    return;
  }
  const Envelope envelope = received.envelope;
  const Message message = std::move(received.message).value();
  const bool is_data = std::holds_alternative<Data>(message);
  const Result<MessageVerdict> verdict =
      stream_->on_message({received.peer, envelope, message}, now);
  if (!verdict.ok()) {
    logger_.error("store: " + verdict.status().message());
  } else if (*verdict == MessageVerdict::kSession && !is_data) {
    const auto& sessions = stream_->receiver().sessions();
    const auto session = sessions.find(envelope.producer_id);
    if (session == sessions.end() || takes_weights(session->second.hello)) {
      broadcaster_->on_message(envelope, message, now_ms(now));
    }
  }
}

void Trainer::receive(SteadyTime deadline) {
  for (size_t i = 0; i < kMessagesARound; ++i) {
    Result<std::optional<Received>> received = socket_->receive(deadline);
    const SteadyTime now = std::chrono::steady_clock::now();
    if (!received.ok()) {
      logger_.error("socket: " + received.status().message());
      return;
    }
    if (!received->has_value()) return;
    handle(std::move(**received), now);
    deadline = now;  // whatever else is there, without waiting
  }
}

void Trainer::advance_fleet(SteadyTime now) {
  for (const SessionChange& change : stream_->take_session_changes()) {
    const std::string& name = change.session.hello.worker_name;
    if (change.kind == SessionChangeKind::kJoined) {
      const std::string what =
          takes_weights(change.session.hello)
              ? change.session.hello.model + ", serves version " +
                    std::to_string(change.session.hello.weights.serving_version)
              : "it only sends";
      logger_.info("worker " + name + " joined: " + what + ", epoch " +
                   std::to_string(change.session.epoch));
      continue;
    }
    if (change.kind == SessionChangeKind::kLeft) {
      logger_.info("worker " + name + " left: " + change.reason);
    } else {
      logger_.warn("worker " + name + " is gone: " + change.reason);
    }
    if (!takes_weights(change.session.hello)) continue;
    broadcaster_->on_worker_lost(change.session.producer_id, change.reason, now_ms(now));
  }
  broadcaster_->tick(now_ms(now));
  for (const BroadcastEvent& event : broadcaster_->take_events()) {
    const std::string text = (event.worker.empty() ? "fleet" : event.worker) + ": version " +
                             std::to_string(event.weight_version) + ": " + event.text;
    logger_.log(is_warning(event.kind) ? LogLevel::kWarn : LogLevel::kInfo, text);
    updates_.note(broadcaster_->report());
  }
  for (BroadcastMessage& outgoing : broadcaster_->take_outgoing()) {
    stream_->receiver().send(outgoing.to, std::move(outgoing.message));
  }
}

Status Trainer::count_taken() {
  TrajectoryStore& store = stream_->receiver().store();
  while (counted_ < store.num_taken()) {
    WARPROLL_TRY_ASSIGN(batch, store.read(counted_, 256));
    if (batch.empty()) return internal_error("the store counts trajectories it cannot read");
    for (const TakenTrajectory& taken : batch) {
      WARPROLL_TRY_ASSIGN(trajectory, decode_trajectory(taken.record, taken.tensors));
      statistics_.add(trajectory, exact_match_reward(trajectory));
      ++counted_;
    }
  }
  return ok_status();
}

// A full disk stops what needs it; signs of life, leases and weight updates go on.
Status Trainer::advance(SteadyTime now) {
  Status fed;
  if (feeder_) {
    const size_t workers = std::max<size_t>(1, stream_->receiver().sessions().size());
    fed = feeder_->feed(*stream_, workers * static_cast<size_t>(config_.tasks.open_per_worker));
  }
  const Status streamed = stream_->advance(now);
  const Status counted = count_taken();
  for (const TaskFailure& failure : stream_->leases().take_failures()) {
    ++failed_tasks_;
    logger_.error("task " + failure.task_id + " failed: " + failure.reason);
  }
  advance_fleet(now);
  WARPROLL_TRY(fed);
  WARPROLL_TRY(streamed);
  WARPROLL_TRY(counted);
  WARPROLL_TRY(
      publisher_->advance(*broadcaster_, stream_->receiver().store().num_taken(), now_ms(now))
          .status());
  return ok_status();
}

void Trainer::send_outgoing() {
  while (std::optional<PeerMessage> message = stream_->next_outgoing()) {
    const Status sent = socket_->send(message->peer, message->envelope, message->message);
    // Gone or full: everything is restated, and a silent worker is dropped by its liveness.
    if (!sent.ok()) {
      logger_.debug(std::string(message_name(message->message)) + ": " + sent.message());
    }
  }
}

bool Trainer::finished() const {
  const auto wanted = static_cast<uint64_t>(config_.stop_after_samples);
  if (wanted != 0) return stream_->receiver().store().num_taken() >= wanted;
  return feeder_ && feeder_->exhausted() && stream_->leases().num_unfinished() == 0 &&
         (config_.checkpoints.publish.empty() || broadcaster_->converged());
}

void Trainer::say_goodbye() {
  const SteadyTime end = std::chrono::steady_clock::now() + kGoodbye;
  if (config_.drain_workers) {
    for (const auto& [producer_id, session] : stream_->receiver().sessions()) {
      stream_->receiver().send(producer_id, Drain{});
    }
  }
  // The acknowledgements of the last samples reach the workers before the socket closes.
  for (SteadyTime now = std::chrono::steady_clock::now(); now < end;
       now = std::chrono::steady_clock::now()) {
    receive(now + kRound);
    if (!stream_->advance(now).ok()) break;
    send_outgoing();
  }
  socket_->close(static_cast<int>(kGoodbye.count()));
}

Status Trainer::run(StopSignal& stop) {
  while (!stop.wait_until(std::chrono::steady_clock::now())) {
    receive(std::chrono::steady_clock::now() + kRound);
    const SteadyTime now = std::chrono::steady_clock::now();
    const Status advanced = advance(now);
    if (!advanced.ok()) {
      if (advanced.code() != StatusCode::kResourceExhausted &&
          advanced.code() != StatusCode::kUnavailable) {
        return advanced;
      }
      if (now - last_failure_shown_ > kShowEvery) {
        logger_.error("paused: " + advanced.message());
        last_failure_shown_ = now;
      }
    }
    send_outgoing();
    show_progress(now, false);
    if (advanced.ok() && finished()) break;
  }
  say_goodbye();
  show_progress(std::chrono::steady_clock::now(), true);
  WARPROLL_TRY(stream_->finish());
  return write_summary();
}

void Trainer::show_progress(SteadyTime now, bool at_end) {
  if (now < next_show_ && !at_end) return;
  next_show_ = now + kShowEvery;
  const double seconds = std::chrono::duration<double>(now - started_).count();
  std::string line = "taken " + std::to_string(statistics_.samples());
  if (feeder_ && feeder_->num_tasks() != 0) {
    line += ", tasks " + std::to_string(stream_->leases().stats().finished_tasks) + " of " +
            std::to_string(feeder_->num_tasks());
  }
  line += ", " + std::to_string(stream_->receiver().sessions().size()) + " workers, version " +
          std::to_string(broadcaster_->target_version()) + ", " +
          format_number(static_cast<double>(statistics_.tokens() - tokens_before_) / seconds, 0) +
          " tokens/s";
  for (const auto& [version, row] : statistics_.by_version()) {
    if (row.rewarded == 0) continue;
    line += ", v" + std::to_string(version) + " " + format_number(100 * row.mean_reward(), 1) + "%";
  }
  logger_.info(line);
}

std::string Trainer::report() const {
  const TrajectoryReceiverStats& stats = stream_->receiver().stats();
  const TaskLeasesStats leases = stream_->leases().stats();
  std::string text = "Reward by weight_version\n" + statistics_.table();
  if (!updates_.empty()) text += "\nWeight updates\n" + updates_.table();
  Table counts({"trajectories taken", "resent", "second samples of a task", "gaps", "refused",
                "tasks finished", "tasks failed", "leases taken back"});
  counts.add({std::to_string(statistics_.samples()), std::to_string(stats.resent),
              std::to_string(stats.duplicate_pairs), std::to_string(stats.gap_seqs),
              std::to_string(stats.malformed + stats.invalid + stats.conflicts + stats.too_large),
              std::to_string(leases.finished_tasks), std::to_string(failed_tasks_),
              std::to_string(leases.reissued)});
  return text + "\nCounts\n" + counts.to_string();
}

Status Trainer::write_summary() const {
  const TrajectoryReceiverStats& stats = stream_->receiver().stats();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  const nlohmann::ordered_json summary = {
      {"seconds", seconds},
      {"tokens_per_s", static_cast<double>(statistics_.tokens() - tokens_before_) / seconds},
      {"failed_tasks", failed_tasks_},
      {"resent", stats.resent},
      {"second_samples", stats.duplicate_pairs},
      {"leases_taken_back", stream_->leases().stats().reissued},
      {"rewards", nlohmann::ordered_json::parse(statistics_.json())},
      {"updates", nlohmann::ordered_json::parse(updates_.json())}};
  return write_text_file(config_.state_directory + "/summary.json", summary.dump(1) + "\n");
}

}  // namespace warproll
