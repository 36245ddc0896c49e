#include "rollout/stream/trajectory_receiver.h"

#include <utility>

namespace warproll {
namespace {

using std::chrono::milliseconds;

Status check_options(const TrajectoryReceiverOptions& options) {
  const auto number = [](uint64_t value) { return std::to_string(value); };
  if (options.credit_messages == 0 || 2 * options.credit_messages >= options.receive_hwm_messages) {
    return invalid_argument("receiver: credit_messages is " + number(options.credit_messages) +
                            ", wanted 1 or more and below half of receive_hwm_messages (" +
                            number(options.receive_hwm_messages) + ")");
  }
  if (options.credit_bytes < options.limits.max_message_bytes) {
    return invalid_argument("receiver: credit_bytes is " + number(options.credit_bytes) +
                            ", wanted at least max_message_bytes (" +
                            number(options.limits.max_message_bytes) +
                            "), or the largest message could never be sent");
  }
  if (options.limits.heartbeat_ms == 0 ||
      options.limits.liveness_ms < 2 * options.limits.heartbeat_ms) {
    return invalid_argument("receiver: heartbeat_ms is " + number(options.limits.heartbeat_ms) +
                            " and liveness_ms " + number(options.limits.liveness_ms) +
                            ", wanted heartbeat_ms >= 1 and liveness_ms at least twice that");
  }
  return ok_status();
}

}  // namespace

Result<std::unique_ptr<TrajectoryReceiver>> TrajectoryReceiver::open(
    const TrajectoryReceiverOptions& options) {
  WARPROLL_TRY(check_options(options));
  WARPROLL_TRY_ASSIGN(store, TrajectoryStore::open(options.store));
  return std::unique_ptr<TrajectoryReceiver>(new TrajectoryReceiver(options, std::move(store)));
}

TrajectoryReceiver::TrajectoryReceiver(TrajectoryReceiverOptions options,
                                       std::unique_ptr<TrajectoryStore> store)
    : options_(std::move(options)), store_(std::move(store)) {}

Result<MessageVerdict> TrajectoryReceiver::on_message(PeerMessage message, SteadyTime now) {
  if (std::holds_alternative<Hello>(message.message)) {
    WARPROLL_TRY(on_hello(std::move(message), now));
    return MessageVerdict::kSession;
  }
  const auto it = sessions_.find(message.envelope.producer_id);
  if (it == sessions_.end() || it->second.epoch != message.envelope.epoch ||
      it->second.peer != message.peer) {
    refuse_unknown(message, now);
    return MessageVerdict::kRefused;
  }
  WorkerSession& session = it->second;
  session.last_heard = now;
  if (const auto* data = std::get_if<Data>(&message.message)) {
    WARPROLL_TRY(on_data(session, message.envelope, *data));
  } else if (const auto* gap = std::get_if<Gap>(&message.message)) {
    on_gap(session, *gap);
  } else if (const auto* heartbeat = std::get_if<Heartbeat>(&message.message)) {
    session.heartbeat = *heartbeat;
  } else if (const auto* bye = std::get_if<Bye>(&message.message)) {
    on_bye(session, *bye);
  }
  return MessageVerdict::kSession;
}

void TrajectoryReceiver::on_malformed(const std::string& peer, const Envelope& envelope,
                                      const Status& why) {
  ++stats_.malformed;
  const auto it = sessions_.find(envelope.producer_id);
  if (it == sessions_.end() || it->second.peer != peer || envelope.seq == 0) return;
  queue(it->second, Nack{envelope.seq, NackCode::kMalformed, why.message()});
}

Status TrajectoryReceiver::on_hello(PeerMessage message, SteadyTime now) {
  const Envelope& envelope = message.envelope;
  const ProducerWatermark known = store_->producer(envelope.producer_id);
  if (envelope.epoch < known.epoch) {
    ++stats_.fenced;
    outgoing_.push_back({message.peer, envelope, Fenced{known.epoch}});
    return ok_status();
  }
  if (envelope.epoch > known.epoch) store_->stage_epoch(envelope.producer_id, envelope.epoch);
  WorkerSession& session = sessions_[envelope.producer_id];
  session.producer_id = envelope.producer_id;
  session.epoch = envelope.epoch;
  session.peer = message.peer;
  session.hello = std::get<Hello>(std::move(message.message));
  session.heartbeat = Heartbeat{};
  session.last_heard = now;
  Flow flow;
  flow.next_heartbeat = now + milliseconds(options_.limits.heartbeat_ms);
  flows_[envelope.producer_id] = flow;
  // We once acknowledged more than we have (power loss without sync). A watermark falls only with a
  // new lineage; then the worker sends it again (S7).
  if (session.hello.lineage_id == store_->lineage_id() &&
      session.hello.commit_upto > known.commit_upto) {
    ++stats_.watermark_regressions;
    WARPROLL_TRY(store_->start_new_lineage());
    welcome_everybody_anew();
  }
  return ok_status();
}

void TrajectoryReceiver::refuse_unknown(const PeerMessage& message, SteadyTime now) {
  const Envelope& envelope = message.envelope;
  const uint64_t epoch = store_->producer(envelope.producer_id).epoch;
  SteadyTime& quiet_until = need_hello_until_[message.peer];
  if (now < quiet_until) return;
  quiet_until = now + milliseconds(options_.limits.heartbeat_ms);
  if (envelope.epoch < epoch) {
    ++stats_.fenced;
    outgoing_.push_back({message.peer, envelope, Fenced{epoch}});
    return;
  }
  ++stats_.need_hello;
  std::string reason = std::string(message_name(message.message)) + " from producer " +
                       to_hex(envelope.producer_id) + " before HELLO on this connection";
  outgoing_.push_back({message.peer, envelope, NeedHello{std::move(reason)}});
}

void TrajectoryReceiver::on_bye(WorkerSession& session, const Bye& bye) {
  const ProducerId producer_id = session.producer_id;
  changes_.push_back({SessionChangeKind::kLeft, std::move(session), bye.reason, bye.open_task_ids});
  sessions_.erase(producer_id);
  flows_.erase(producer_id);
}

Result<std::vector<TakenPair>> TrajectoryReceiver::flush() {
  auto flushed = store_->flush();
  if (!flushed.ok()) {
    ++stats_.flush_failures;
    return flushed;
  }
  if (!flushed->empty()) ++stats_.flushes;
  for (PeerMessage& message : after_flush_) outgoing_.push_back(std::move(message));
  after_flush_.clear();
  for (auto& [producer_id, session] : sessions_) {
    Flow& flow = flows_[producer_id];
    if (flow.welcome_due) welcome(session);
    if (flow.ack_due) queue(session, ack_for(producer_id));
    flow.welcome_due = flow.ack_due = false;
  }
  return flushed;
}

void TrajectoryReceiver::tick(SteadyTime now) {
  std::erase_if(need_hello_until_, [&](const auto& entry) { return entry.second <= now; });
  std::vector<ProducerId> gone;
  for (auto& [producer_id, session] : sessions_) {
    Flow& flow = flows_[producer_id];
    if (now - session.last_heard > milliseconds(options_.limits.liveness_ms)) {
      gone.push_back(producer_id);
    } else if (now >= flow.next_heartbeat) {
      flow.next_heartbeat = now + milliseconds(options_.limits.heartbeat_ms);
      flow.out_of_order_nacked = 0;
      if (flow.welcome_due) continue;  // nothing before WELCOME
      Heartbeat heartbeat;
      heartbeat.trainer_epoch = store_->trainer_epoch();
      queue(session, heartbeat);
      queue(session, ack_for(producer_id));
    }
  }
  for (const ProducerId& producer_id : gone) {
    const auto silent_ms =
        std::chrono::duration_cast<milliseconds>(now - sessions_[producer_id].last_heard);
    changes_.push_back({SessionChangeKind::kGone,
                        std::move(sessions_[producer_id]),
                        "silent for " + std::to_string(silent_ms.count()) + " ms",
                        {}});
    sessions_.erase(producer_id);
    flows_.erase(producer_id);
  }
}

std::optional<PeerMessage> TrajectoryReceiver::next_outgoing() {
  if (outgoing_.empty()) return std::nullopt;
  PeerMessage message = std::move(outgoing_.front());
  outgoing_.pop_front();
  return message;
}

bool TrajectoryReceiver::send(const ProducerId& producer_id, Message message) {
  const auto it = sessions_.find(producer_id);
  if (it == sessions_.end() || flows_[producer_id].welcome_due) return false;
  queue(it->second, std::move(message));
  return true;
}

std::vector<SessionChange> TrajectoryReceiver::take_session_changes() {
  return std::exchange(changes_, {});
}

Status TrajectoryReceiver::mark(std::string_view name) { return store_->mark(name); }

Status TrajectoryReceiver::rollback(std::string_view name) {
  WARPROLL_TRY(store_->rollback(name));
  after_flush_.clear();
  welcome_everybody_anew();
  return ok_status();
}

void TrajectoryReceiver::welcome_everybody_anew() {
  for (auto& [producer_id, flow] : flows_) {
    flow.welcome_due = true;
    flow.out_of_order_nacked = 0;
  }
}

void TrajectoryReceiver::queue(const WorkerSession& session, Message message) {
  outgoing_.push_back({session.peer, {session.producer_id, session.epoch, 0}, std::move(message)});
}

Ack TrajectoryReceiver::ack_for(const ProducerId& producer_id) const {
  const ProducerWatermark watermark = store_->producer(producer_id);
  // Counted from what is committed, so that a store that cannot write stops the senders.
  return {store_->lineage_id(), watermark.recv_upto, watermark.commit_upto,
          watermark.commit_upto + options_.credit_messages, options_.credit_bytes};
}

void TrajectoryReceiver::welcome(const WorkerSession& session) {
  const Ack ack = ack_for(session.producer_id);
  queue(session, Welcome{ack.lineage_id, store_->trainer_epoch(), ack.commit_upto, ack.credit_seq,
                         ack.credit_bytes, options_.limits});
  changes_.push_back({SessionChangeKind::kJoined, session, {}, {}});
}

}  // namespace warproll
