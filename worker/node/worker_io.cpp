// The io loop of a WorkerNode: it alone touches the socket and the publisher.
#include <chrono>

#include "worker/node/worker_node.h"

namespace warproll {
namespace {

constexpr std::chrono::milliseconds kRound(20);  // longest wait; wakes and messages end it
constexpr size_t kMessagesARound = 256;
constexpr int kByeLingerMs = 1000;

template <typename... Types>
bool holds_any(const Message& message) {
  return (std::holds_alternative<Types>(message) || ...);
}

}  // namespace

Hello WorkerNode::hello() const {
  Hello hello;
  hello.worker_name = name_;
  hello.engine_version = identity_.engine_version;
  hello.model = identity_.model;
  hello.model_config_digest = model_config_digest_;
  hello.tokenizer_digest = identity_.tokenizer_digest;
  hello.vocab_size = model_.vocab_size;
  hello.max_context_tokens = max_context_tokens_;
  hello.state = state_;
  hello.weights = updates_->weight_status();
  hello.transports = updates_->transport_names();
  for (const auto& transport : transports_) {
    const HelloEnvironment environment = transport->environment();
    hello.environment.insert(hello.environment.end(), environment.begin(), environment.end());
  }
  hello.open_task_ids = collector_->open_task_ids();
  return hello;
}

Heartbeat WorkerNode::heartbeat() const {
  Heartbeat heartbeat;
  const CollectorLoad load = collector_->load();
  heartbeat.state = state_;
  heartbeat.weights = updates_->weight_status();
  heartbeat.queued_samples = load.queued_samples;
  heartbeat.running_samples = load.running_samples;
  heartbeat.free_task_slots = load.free_task_slots;
  return heartbeat;
}

void WorkerNode::handle(const Message& message, SteadyTime now) {
  if (const auto* welcome = std::get_if<Welcome>(&message)) {
    socket_->set_peer_max_message_bytes(welcome->limits.max_message_bytes);
    updates_->set_trainer_epoch(welcome->trainer_epoch);
    logger_.info("trainer epoch " + std::to_string(welcome->trainer_epoch) + ", lineage " +
                 welcome->lineage_id + ", committed up to " + std::to_string(welcome->commit_upto));
  } else if (const auto* beat = std::get_if<Heartbeat>(&message)) {
    updates_->set_trainer_epoch(beat->trainer_epoch);
  }
  const Result<bool> taken = publisher_->on_message(message, now);
  if (!taken.ok()) return logger_.error("stream: " + taken.status().message());
  if (*taken) return;
  if (const auto* task = std::get_if<TaskMessage>(&message)) {
    collector_->offer(*task);
  } else if (const auto* cancel = std::get_if<Cancel>(&message)) {
    collector_->cancel(*cancel);
  } else if (const auto* pause = std::get_if<Pause>(&message)) {
    collector_->set_paused(pause->paused);
    if (state_ == WorkerState::kServing || state_ == WorkerState::kPaused) {
      set_state(pause->paused ? WorkerState::kPaused : WorkerState::kServing);
    }
  } else if (std::holds_alternative<Drain>(message)) {
    drain_asked_ = true;
  } else if (holds_any<UpdateBegin, UpdateStart, UpdateCommit, UpdateAbort, Rollback>(message)) {
    updates_->handle(message);
  } else {
    logger_.warn("unexpected message " + std::string(message_name(message)));
  }
}

void WorkerNode::reconnect_if_due(SteadyTime now) {
  if (!publisher_->reconnect_due(now)) return;
  logger_.warn("no word from " + config_.trainer.endpoint + ", connecting again");
  const Status status = socket_->reconnect();
  if (!status.ok()) logger_.error("reconnect: " + status.message());
  publisher_->on_reconnected(now);
}

void WorkerNode::send_outgoing(SteadyTime now) {
  for (TaskAck& answer : collector_->take_answers()) {
    if (answer.answer == TaskAnswer::kRejected) {
      logger_.warn("task " + answer.task_id + " rejected: " + answer.reason);
    }
    if (publisher_->streaming()) publisher_->queue(std::move(answer));
  }
  while (std::optional<Message> message = update_messages_.try_pop()) {
    if (publisher_->streaming()) publisher_->queue(*std::move(message));
  }
  for (;;) {
    Result<std::optional<WorkerMessage>> outgoing = publisher_->next_outgoing(now);
    if (!outgoing.ok()) return logger_.error("stream: " + outgoing.status().message());
    if (!outgoing->has_value()) return;
    const Status sent = socket_->send((*outgoing)->envelope, (*outgoing)->message);
    if (sent.ok()) continue;
    const Status noted = publisher_->send_failed(*std::move(*outgoing), sent);
    if (!noted.ok()) logger_.error("stream: " + noted.message());
    if (sent.code() == StatusCode::kUnavailable) return;  // the next round tries again
  }
}

void WorkerNode::publish_io_state() {
  io_streaming_ = publisher_->streaming();
  const std::lock_guard lock(mutex_);
  publisher_stats_ = publisher_->stats();
}

void WorkerNode::io_round(SteadyTime now) {
  SteadyTime deadline = now + kRound;
  for (size_t i = 0; i < kMessagesARound; ++i) {
    Result<std::optional<Received>> received = socket_->receive(deadline, &waker_);
    now = std::chrono::steady_clock::now();
    if (!received.ok()) return fail(received.status().with_context("socket"));
    if (!received->has_value()) break;
    if ((*received)->message.ok()) {
      handle(*(*received)->message, now);
    } else {
      logger_.warn("malformed message: " + (*received)->message.status().message());
    }
    deadline = now;  // whatever else is there, without waiting
  }
  const Status ticked = publisher_->tick(now);
  if (!ticked.ok()) logger_.error("stream: " + ticked.message());
  reconnect_if_due(now);
  send_outgoing(now);
  if (!publisher_->stopped_because().ok()) fail(publisher_->stopped_because());
  publish_io_state();
}

void WorkerNode::run_io() {
  try {
    while (!io_stop_) io_round(std::chrono::steady_clock::now());
    if (say_bye_ && publisher_->streaming()) {
      publisher_->bye("the worker stops", collector_->open_task_ids());
      send_outgoing(std::chrono::steady_clock::now());
      socket_->close(kByeLingerMs);
    }
  } catch (const std::exception& error) {
    fail(internal_error(std::string("io loop: ") + error.what()));
  }
  socket_.reset();  // on its own thread
}

}  // namespace warproll
