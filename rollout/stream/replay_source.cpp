#include "rollout/stream/replay_source.h"

#include <algorithm>
#include <random>
#include <utility>

#include "protocol/codec.h"
#include "rollout/sample_log/log_reader.h"

namespace warproll {
namespace {

ProducerId random_producer() {
  std::random_device device;
  ProducerId producer_id{};
  for (uint8_t& byte : producer_id) byte = static_cast<uint8_t>(device());
  return producer_id;
}

}  // namespace

ReplaySource::ReplaySource(Next next, ReplayOptions options, ProducerSession::Sources sources)
    : next_(std::move(next)),
      options_(options),
      producer_id_(random_producer()),
      session_(producer_id_, 1, options.session, std::move(sources)) {}

Status ReplaySource::on_message(const Message& message, SteadyTime now) {
  session_.on_message(message, now);
  if (const auto* welcome = std::get_if<Welcome>(&message)) on_welcome(*welcome, now);
  if (session_.state() != SessionState::kStreaming) return ok_status();
  if (const auto* ack = std::get_if<Ack>(&message)) {
    const uint64_t last_seq = first_seq_ + items_.size() - 1;
    if (ack->lineage_id != lineage_id_) {
      session_.greet_again();
    } else if (std::max(ack->recv_upto, ack->commit_upto) <= last_seq) {
      if (window_.on_ack(*ack)) last_progress_ = now;
      forget_committed();
    }
  }
  if (const auto* nack = std::get_if<Nack>(&message)) on_nack(*nack, now);
  return ok_status();
}

void ReplaySource::on_welcome(const Welcome& welcome, SteadyTime now) {
  if (session_.state() != SessionState::kGreeting) {
    if (welcome.lineage_id == lineage_id_) return;
  }
  const uint64_t last_seq = first_seq_ + items_.size() - 1;
  if (welcome.commit_upto + 1 < first_seq_ || welcome.commit_upto > last_seq) {
    session_.fail(aborted("the trainer rolled back during the replay: it holds " +
                          std::to_string(welcome.commit_upto) + " of the " +
                          std::to_string(first_seq_ - 1) +
                          " samples that were committed; start the replay again"));
    return;
  }
  lineage_id_ = welcome.lineage_id;
  window_.reset(welcome.commit_upto, welcome.credit_seq, welcome.credit_bytes);
  forget_committed();
  last_progress_ = now;
  session_.on_welcomed(welcome);
}

void ReplaySource::on_nack(const Nack& nack, SteadyTime now) {
  switch (nack.code) {
    case NackCode::kRetry:
      not_before_ = now + std::chrono::milliseconds(options_.retry_ms);
      [[fallthrough]];
    case NackCode::kOutOfOrder:
      window_.go_back(window_.recv_upto());
      return;
    case NackCode::kMalformed:
    case NackCode::kInvalid:
    case NackCode::kConflict:
    case NackCode::kTooLarge:
      refuse(nack.seq, nack.code, nack.reason);
      return;
  }
}

void ReplaySource::refuse(uint64_t seq, NackCode code, const std::string& reason) {
  if (seq < first_seq_ || seq >= first_seq_ + items_.size() || item(seq).refused) return;
  Item& refused = item(seq);
  refused.refused = true;
  refused.data = {};
  ++stats_.refused;
  refusals_.push_back({refused.source_seq, code, reason});
  window_.go_back(seq - 1);
}

void ReplaySource::forget_committed() {
  while (!items_.empty() && first_seq_ <= window_.commit_upto()) {
    items_.pop_front();
    ++first_seq_;
    ++stats_.committed;
  }
}

void ReplaySource::tick(SteadyTime now) {
  session_.tick(now);
  if (window_.sent_upto() > window_.recv_upto() &&
      now - last_progress_ > std::chrono::milliseconds(options_.resend_ms)) {
    last_progress_ = now;
    window_.go_back(window_.recv_upto());
  }
}

// One item beyond what is sent.
Status ReplaySource::read_ahead() {
  const uint64_t seq = first_seq_ + items_.size();
  WARPROLL_TRY_ASSIGN(stored, next_());
  if (!stored) {
    at_end_ = true;
    return ok_status();
  }
  ++stats_.read;
  Item next;
  next.source_seq = stored->seq;
  if (options_.mode == ReplayMode::kAsNew) {
    WARPROLL_TRY_ASSIGN(data, as_new(*stored, seq));
    next.data = std::move(data);
  } else {
    next.data = {std::move(stored->record), std::move(stored->tensors), true};
  }
  items_.push_back(std::move(next));
  return ok_status();
}

Result<Data> ReplaySource::as_new(const StoredRecord& stored, uint64_t seq) const {
  WARPROLL_TRY_ASSIGN(trajectory, decode_stored(stored));
  const std::string hex = to_hex(producer_id_);
  const std::string prefix = "replay-" + hex.substr(0, 8) + "/";
  trajectory.producer_id = producer_id_;
  trajectory.epoch = 1;
  trajectory.seq = seq;
  trajectory.trajectory_id = hex + "-" + std::to_string(seq);
  trajectory.task_id = prefix + trajectory.task_id;
  trajectory.group_id = prefix + trajectory.group_id;
  WARPROLL_TRY(
      validate(trajectory, 0).with_context("replay as new of seq " + std::to_string(stored.seq)));
  Data data;
  WARPROLL_TRY(encode_trajectory(trajectory, &data.record, &data.tensors));
  data.replayed = true;
  return data;
}

Result<std::optional<WorkerMessage>> ReplaySource::next_outgoing(SteadyTime now) {
  if (auto message = session_.next_outgoing()) return message;
  if (session_.state() != SessionState::kStreaming) return std::optional<WorkerMessage>();
  const uint64_t seq = window_.sent_upto() + 1;
  const bool is_new = seq == first_seq_ + items_.size();
  if (now < not_before_ || (is_new && at_end_)) return std::optional<WorkerMessage>();
  // Not even read when it could not go: memory stays within the credit.
  if (!window_.may_send(seq, 1)) return std::optional<WorkerMessage>();
  if (is_new) WARPROLL_TRY(read_ahead());
  if (seq == first_seq_ + items_.size()) return std::optional<WorkerMessage>();
  if (is_new && options_.samples_per_s > 0.0) {
    const auto step = std::chrono::nanoseconds(static_cast<int64_t>(1e9 / options_.samples_per_s));
    not_before_ = std::max(not_before_ + step, now);  // no burst after a pause
  }
  Item& next = item(seq);
  if (next.bytes() > session_.limits().max_message_bytes) {
    refuse(seq, NackCode::kTooLarge,
           "trajectory has " + std::to_string(next.bytes()) + " bytes, the trainer takes at most " +
               std::to_string(session_.limits().max_message_bytes));
  }
  if (!window_.may_send(seq, next.bytes())) return std::optional<WorkerMessage>();
  if (window_.sent_upto() == window_.recv_upto()) last_progress_ = now;
  window_.on_sent(seq, next.bytes());
  if (next.refused) {
    return std::optional<WorkerMessage>(
        {session_.envelope(0), Gap{seq, seq, "refused by the trainer"}});
  }
  ++stats_.sent;
  stats_.sent_bytes += next.bytes();
  return std::optional<WorkerMessage>({session_.envelope(seq), next.data});
}

void ReplaySource::send_failed(WorkerMessage message, const Status& why) {
  if (std::holds_alternative<Data>(message.message)) {
    if (why.code() == StatusCode::kInvalidArgument) {
      refuse(message.envelope.seq, NackCode::kTooLarge, "not sent: " + why.message());
    }
    window_.go_back(message.envelope.seq - 1);
  } else if (const auto* gap = std::get_if<Gap>(&message.message)) {
    window_.go_back(gap->from - 1);
  } else if (why.code() != StatusCode::kInvalidArgument) {
    session_.put_back(std::move(message));
  }
}

bool ReplaySource::done() const { return at_end_ && items_.empty(); }

}  // namespace warproll
