#include "rollout/stream/publisher.h"

#include <algorithm>
#include <utility>

#include "rollout/sample_log/sample_log.h"

namespace warproll {
namespace {

using std::chrono::milliseconds;

ProducerSession::Sources with_log(ProducerSession::Sources sources, const SampleLog& log) {
  return {.hello =
              [hello = std::move(sources.hello), &log] {
                Hello message = hello();
                const LogInfo info = log.info();
                message.last_seq = info.last_seq;
                message.commit_upto = info.commit_upto;
                message.lineage_id = info.lineage_id;
                return message;
              },
          .heartbeat =
              [heartbeat = std::move(sources.heartbeat), &log] {
                Heartbeat message = heartbeat();
                message.last_seq = log.last_seq();
                return message;
              }};
}

}  // namespace

Publisher::Publisher(SampleLog& log, PublisherOptions options, ProducerSession::Sources sources)
    : log_(log),
      options_(options),
      session_(log.producer_id(), log.epoch(), options.session, with_log(std::move(sources), log)) {
}

Result<bool> Publisher::on_message(const Message& message, SteadyTime now) {
  session_.on_message(message, now);
  if (const auto* welcome = std::get_if<Welcome>(&message)) {
    WARPROLL_TRY(on_welcome(*welcome, now));
    return true;
  }
  if (const auto* ack = std::get_if<Ack>(&message)) {
    WARPROLL_TRY(on_ack(*ack, now));
    return true;
  }
  if (const auto* nack = std::get_if<Nack>(&message)) {
    WARPROLL_TRY(on_nack(*nack, now));
    return true;
  }
  return std::holds_alternative<NeedHello>(message) || std::holds_alternative<Fenced>(message) ||
         std::holds_alternative<Heartbeat>(message);
}

Status Publisher::on_welcome(const Welcome& welcome, SteadyTime now) {
  if (session_.state() == SessionState::kStopped) return ok_status();
  const LogInfo info = log_.info();
  // A second WELCOME of a session that streams says nothing new, unless the trainer rolled back.
  if (streaming() && welcome.lineage_id == info.lineage_id) return ok_status();
  if (welcome.commit_upto > info.last_seq) {
    session_.fail(data_loss("the trainer has committed seq " + std::to_string(welcome.commit_upto) +
                            " of producer " + to_hex(info.producer_id) +
                            ", this log ends with seq " + std::to_string(info.last_seq) +
                            "; the log was put back from an older copy: give it a new directory"));
    return ok_status();
  }
  // A watermark falls only with a new lineage, so this is an old message; HELLO is said again.
  if (welcome.lineage_id == info.lineage_id && welcome.commit_upto < info.commit_upto) {
    ++stats_.stale_welcomes;
    return ok_status();
  }
  if (welcome.lineage_id != info.lineage_id) {
    if (!info.lineage_id.empty()) ++stats_.rewinds;
    WARPROLL_TRY(log_.rewind(welcome.lineage_id, welcome.commit_upto).status());
  } else {
    WARPROLL_TRY(log_.mark_committed(welcome.commit_upto, welcome.lineage_id));
  }
  window_.reset(welcome.commit_upto, welcome.credit_seq, welcome.credit_bytes);
  ahead_.clear();
  last_progress_ = now;
  not_before_ = {};
  session_.on_welcomed(welcome);
  return ok_status();
}

Status Publisher::on_ack(const Ack& ack, SteadyTime now) {
  if (!streaming()) return ok_status();
  if (ack.lineage_id != log_.lineage_id()) {
    session_.greet_again();  // the trainer rolled back and its WELCOME was lost
    return ok_status();
  }
  const uint64_t last_seq = log_.last_seq();
  if (std::max(ack.commit_upto, ack.recv_upto) > last_seq) {
    session_.fail(data_loss("the trainer acknowledges seq " +
                            std::to_string(std::max(ack.commit_upto, ack.recv_upto)) +
                            ", this log ends with seq " + std::to_string(last_seq)));
    return ok_status();
  }
  WARPROLL_TRY(log_.mark_committed(ack.commit_upto, ack.lineage_id));
  if (window_.on_ack(ack)) last_progress_ = now;
  while (!ahead_.empty() && ahead_.front().seq <= window_.sent_upto()) ahead_.pop_front();
  return ok_status();
}

Status Publisher::on_nack(const Nack& nack, SteadyTime now) {
  if (!streaming()) return ok_status();
  ++stats_.nacks;
  stats_.last_nack =
      std::string(to_string(nack.code)) + ": seq " + std::to_string(nack.seq) + ": " + nack.reason;
  switch (nack.code) {
    case NackCode::kMalformed:
    case NackCode::kInvalid:
    case NackCode::kConflict:
    case NackCode::kTooLarge:
      return give_up(nack.seq, nack.code, nack.reason);
    case NackCode::kOutOfOrder:
      go_back(window_.recv_upto());
      return ok_status();
    case NackCode::kRetry:
      not_before_ = now + milliseconds(options_.retry_ms);
      go_back(window_.recv_upto());
      return ok_status();
  }
  return ok_status();
}

// Into the dead letters, and a GAP goes in its place. What is committed (the NACK was late) or not
// ours cannot be given up any more.
Status Publisher::give_up(uint64_t seq, NackCode code, const std::string& reason) {
  if (seq <= log_.commit_upto() || seq > log_.last_seq()) return ok_status();
  WARPROLL_TRY(log_.dead_letter(seq, code, reason));
  ++stats_.dead_letters;
  go_back(seq - 1);
  return ok_status();
}

void Publisher::go_back(uint64_t seq) {
  const uint64_t before = window_.sent_upto();
  window_.go_back(seq);
  if (window_.sent_upto() < before) ++stats_.resends;
  ahead_.clear();
}

Status Publisher::tick(SteadyTime now) {
  session_.tick(now);
  if (streaming() && window_.sent_upto() > window_.recv_upto() &&
      now - last_progress_ > milliseconds(options_.resend_ms)) {
    last_progress_ = now;
    go_back(window_.recv_upto());
  }
  return flush_notes();
}

Result<std::optional<WorkerMessage>> Publisher::next_outgoing(SteadyTime now) {
  if (auto message = session_.next_outgoing()) return message;
  return next_data(now);
}

Result<std::optional<WorkerMessage>> Publisher::next_data(SteadyTime now) {
  using Nothing = std::optional<WorkerMessage>;
  while (streaming() && now >= not_before_) {
    const uint64_t seq = window_.sent_upto() + 1;
    const uint64_t last_seq = log_.last_seq();  // before the outbox is read: it grows meanwhile
    if (seq > last_seq) break;
    if (window_.sent_upto() == window_.recv_upto()) last_progress_ = now;  // nothing is awaited
    if (ahead_.empty()) {
      WARPROLL_TRY_ASSIGN(entries, log_.read_outbox(seq, options_.outbox_batch));
      ahead_.assign(entries.begin(), entries.end());
    }
    const uint64_t next_stored = ahead_.empty() ? last_seq + 1 : ahead_.front().seq;
    if (next_stored > seq) {
      if (!window_.may_send(seq, 0)) break;
      return next_gap(seq, std::min(next_stored, last_seq + 1));
    }
    const OutboxEntry entry = ahead_.front();
    if (entry.bytes > session_.limits().max_message_bytes) {
      WARPROLL_TRY(give_up(seq, NackCode::kTooLarge,
                           "trajectory has " + std::to_string(entry.bytes) +
                               " bytes, the trainer takes at most " +
                               std::to_string(session_.limits().max_message_bytes)));
      ahead_.clear();
      continue;
    }
    if (!window_.may_send(seq, entry.bytes)) break;
    WARPROLL_TRY_ASSIGN(message, read_for_sending(entry));
    if (message) return message;
  }
  return Nothing();
}

// [seq, before) is not in the outbox: a gap of the log or dead letters.
Result<std::optional<WorkerMessage>> Publisher::next_gap(uint64_t seq, uint64_t before) {
  const std::vector<GapRange> ranges = log_.unsendable(seq, before - 1);
  if (ranges.empty() || ranges.front().from > seq) {
    return internal_error("sample log: seq " + std::to_string(seq) +
                          " is above commit_upto, but neither in the outbox, nor a dead letter, "
                          "nor a gap");
  }
  const Gap gap{seq, std::min(ranges.front().to, before - 1), ranges.front().reason};
  window_.on_sent(gap.to, 0);
  ++stats_.gaps_sent;
  return std::optional<WorkerMessage>({session_.envelope(0), gap});
}

Result<std::optional<WorkerMessage>> Publisher::read_for_sending(const OutboxEntry& entry) {
  Result<StoredRecord> stored = log_.read(entry.seq);
  ahead_.pop_front();
  if (!stored.ok()) {
    const StatusCode code = stored.status().code();
    if (code != StatusCode::kDataLoss && code != StatusCode::kNotFound) return stored.status();
    WARPROLL_TRY(give_up(entry.seq, NackCode::kMalformed,
                         "not sent, the stored record is damaged: " + stored.status().message()));
    return std::optional<WorkerMessage>();
  }
  window_.on_sent(entry.seq, entry.bytes);
  ++stats_.sent_messages;
  stats_.sent_bytes += entry.bytes;
  to_note_.push_back(entry.seq);
  return std::optional<WorkerMessage>(
      {session_.envelope(entry.seq),
       Data{std::move(stored->record), std::move(stored->tensors), false}});
}

Status Publisher::send_failed(WorkerMessage message, const Status& why) {
  const bool is_data = std::holds_alternative<Data>(message.message);
  if (is_data && why.code() == StatusCode::kInvalidArgument) {
    return give_up(message.envelope.seq, NackCode::kTooLarge, "not sent: " + why.message());
  }
  if (is_data) {
    go_back(message.envelope.seq - 1);
  } else if (const auto* gap = std::get_if<Gap>(&message.message)) {
    go_back(gap->from - 1);
  } else if (why.code() != StatusCode::kInvalidArgument) {
    session_.put_back(std::move(message));
  }
  return ok_status();
}

void Publisher::queue(Message message) { session_.queue(std::move(message)); }

void Publisher::on_reconnected(SteadyTime now) {
  ++stats_.reconnects;
  session_.on_reconnected(now);
}

void Publisher::bye(std::string reason, std::vector<std::string> open_task_ids) {
  session_.bye(std::move(reason), std::move(open_task_ids));
}

bool Publisher::drained() const { return log_.commit_upto() >= log_.last_seq(); }

Status Publisher::flush_notes() {
  if (to_note_.empty()) return ok_status();
  return log_.note_sent(std::exchange(to_note_, {}));
}

PublisherStats Publisher::stats() const {
  PublisherStats stats = stats_;
  stats.hellos = session_.hellos();
  stats.sent_upto = window_.sent_upto();
  stats.recv_upto = window_.recv_upto();
  stats.commit_upto = window_.commit_upto();
  stats.in_flight_messages = window_.in_flight_messages();
  stats.in_flight_bytes = window_.in_flight_bytes();
  return stats;
}

}  // namespace warproll
