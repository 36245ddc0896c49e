#include "rollout/stream/producer_session.h"

#include <algorithm>
#include <utility>

namespace warproll {

using std::chrono::milliseconds;

ProducerSession::ProducerSession(const ProducerId& producer_id, uint64_t epoch,
                                 SessionOptions options, Sources sources)
    : producer_id_(producer_id),
      epoch_(epoch),
      options_(options),
      sources_(std::move(sources)),
      limits_(options_.until_welcome) {}

void ProducerSession::on_message(const Message& message, SteadyTime now) {
  last_heard_ = now;
  if (std::holds_alternative<NeedHello>(message)) {
    greet_again();
  } else if (const auto* fenced = std::get_if<Fenced>(&message)) {
    if (fenced->epoch > epoch_) {
      fail(failed_precondition("fenced: the trainer knows epoch " + std::to_string(fenced->epoch) +
                               " of producer " + to_hex(producer_id_) + ", this process is epoch " +
                               std::to_string(epoch_) +
                               "; a newer process owns the log and this one must stop"));
    }
  }
}

void ProducerSession::on_welcomed(const Welcome& welcome) {
  if (state_ == SessionState::kStopped) return;
  state_ = SessionState::kStreaming;
  limits_ = welcome.limits;
  backoff_ms_ = 0;
  next_heartbeat_ = {};  // at once: it says how much room there is
}

void ProducerSession::greet_again() {
  if (state_ == SessionState::kStreaming) state_ = SessionState::kGreeting;
}

void ProducerSession::on_reconnected(SteadyTime now) {
  if (state_ == SessionState::kStopped) return;
  state_ = SessionState::kGreeting;
  outgoing_.clear();  // it was meant for the old connection; all of it is restated
  last_heard_ = now;
  next_hello_ = now;
  backoff_ms_ = std::clamp(backoff_ms_ * 2, options_.reconnect_min_ms, options_.reconnect_max_ms);
}

void ProducerSession::fail(Status why) {
  if (state_ == SessionState::kStopped) return;
  state_ = SessionState::kStopped;
  stopped_because_ = std::move(why);
  outgoing_.clear();
}

void ProducerSession::bye(std::string reason, std::vector<std::string> open_task_ids) {
  if (state_ == SessionState::kStopped) return;
  queue(Bye{std::move(reason), std::move(open_task_ids)});
  state_ = SessionState::kStopped;
}

void ProducerSession::tick(SteadyTime now) {
  if (!last_heard_) last_heard_ = now;
  if (state_ == SessionState::kGreeting && now >= next_hello_) {
    next_hello_ = now + milliseconds(options_.hello_retry_ms);
    next_heartbeat_ = now + milliseconds(limits_.heartbeat_ms);
    ++hellos_;
    queue(sources_.hello());
  }
  if (state_ == SessionState::kStreaming && now >= next_heartbeat_) {
    next_heartbeat_ = now + milliseconds(limits_.heartbeat_ms);
    queue(sources_.heartbeat());
  }
}

bool ProducerSession::reconnect_due(SteadyTime now) const {
  if (state_ == SessionState::kStopped || !last_heard_) return false;
  return now - *last_heard_ > milliseconds(uint64_t{limits_.liveness_ms} + backoff_ms_);
}

void ProducerSession::queue(Message message, uint64_t seq) {
  if (state_ == SessionState::kStopped) return;
  outgoing_.push_back({envelope(seq), std::move(message)});
}

std::optional<WorkerMessage> ProducerSession::next_outgoing() {
  if (outgoing_.empty()) return std::nullopt;
  WorkerMessage message = std::move(outgoing_.front());
  outgoing_.pop_front();
  return message;
}

void ProducerSession::put_back(WorkerMessage message) { outgoing_.push_front(std::move(message)); }

}  // namespace warproll
