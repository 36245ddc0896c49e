// TrajectoryReceiver, DATA and GAP: the table in trajectory_receiver.h.
#include "protocol/codec.h"
#include "rollout/stream/trajectory_receiver.h"

namespace warproll {
namespace {

// Above it a sequence number is nonsense, and arithmetic on it could wrap.
constexpr uint64_t kMaxSeq = uint64_t{1} << 62;

SampleKey key_of(const RecordSummary& summary) {
  return {summary.producer_id, summary.seq, summary.task_id, summary.sample_index};
}

// The record must be what its envelope says; a replay's envelope is the replay's own.
Status check_identity(const RecordSummary& summary, const Envelope& envelope, bool replayed) {
  if (replayed) return ok_status();
  if (summary.producer_id != envelope.producer_id) {
    return invalid_argument("record is of producer " + to_hex(summary.producer_id) +
                            ", its frame of " + to_hex(envelope.producer_id));
  }
  if (summary.seq != envelope.seq) {
    return invalid_argument("record has seq " + std::to_string(summary.seq) + ", its frame " +
                            std::to_string(envelope.seq));
  }
  if (summary.epoch > envelope.epoch) {
    return invalid_argument("record was sealed in epoch " + std::to_string(summary.epoch) +
                            ", later than the sender's " + std::to_string(envelope.epoch));
  }
  return ok_status();
}

}  // namespace

Status TrajectoryReceiver::on_data(const WorkerSession& session, const Envelope& envelope,
                                   const Data& data) {
  const uint64_t recv_upto = store_->producer(session.producer_id).recv_upto;
  if (envelope.seq > recv_upto + 1) {
    out_of_order(session, envelope.seq, recv_upto);
    return ok_status();
  }
  return envelope.seq <= recv_upto ? on_resend(session, envelope.seq, data)
                                   : on_next(session, envelope, data);
}

Status TrajectoryReceiver::on_resend(const WorkerSession& session, uint64_t seq, const Data& data) {
  flows_[session.producer_id].ack_due = true;
  const Result<RecordSummary> summary = peek_trajectory(data.record);
  if (!summary.ok()) {
    return reject(session, seq, data, NackCode::kMalformed, summary.status().message());
  }
  WARPROLL_TRY_ASSIGN(seen, store_->seen(summary->producer_id, summary->seq, data.record));
  if (seen == SeenContent::kOther) {
    return reject(session, seq, data, NackCode::kConflict,
                  "seq " + std::to_string(summary->seq) + " of producer " +
                      to_hex(summary->producer_id) + " was received before with other content");
  }
  ++(seen == SeenContent::kSame ? stats_.resent : stats_.late_after_gap);
  return ok_status();
}

Status TrajectoryReceiver::on_next(const WorkerSession& session, const Envelope& envelope,
                                   const Data& data) {
  const uint64_t bytes = data.record.size() + data.tensors.size();
  if (bytes > options_.limits.max_message_bytes) {
    return reject(session, envelope.seq, data, NackCode::kTooLarge,
                  "trajectory has " + std::to_string(bytes) + " bytes, wanted at most " +
                      std::to_string(options_.limits.max_message_bytes));
  }
  const Result<RecordSummary> summary = peek_trajectory(data.record);
  if (!summary.ok()) {
    return reject(session, envelope.seq, data, NackCode::kMalformed, summary.status().message());
  }
  const Result<Trajectory> trajectory = decode_trajectory(data.record, data.tensors);
  if (!trajectory.ok()) {
    return reject(session, envelope.seq, data, NackCode::kMalformed, trajectory.status().message());
  }
  Status valid = check_identity(*summary, envelope, data.replayed);
  if (valid.ok()) valid = validate(*trajectory, session.hello.vocab_size);
  if (!valid.ok()) {
    return reject(session, envelope.seq, data, NackCode::kInvalid, valid.message());
  }
  const SampleKey key = key_of(*summary);
  WARPROLL_TRY_ASSIGN(seen, store_->seen(key.producer_id, key.seq, data.record));
  if (seen == SeenContent::kOther) {
    return reject(session, envelope.seq, data, NackCode::kConflict,
                  "seq " + std::to_string(key.seq) + " of producer " + to_hex(key.producer_id) +
                      " was received before with other content");
  }
  if (seen == SeenContent::kSame) {
    ++stats_.resent;
  } else {
    WARPROLL_TRY_ASSIGN(is_taken, store_->is_taken(key.task_id, key.sample_index));
    if (is_taken) {
      ++stats_.duplicate_pairs;
      store_->stage_duplicate(key, data);
    } else {
      ++stats_.taken;
      store_->stage_taken(key, data);
    }
  }
  store_->stage_watermark(session.producer_id, envelope.seq);
  flows_[session.producer_id].ack_due = true;
  return ok_status();
}

Status TrajectoryReceiver::reject(const WorkerSession& session, uint64_t seq, const Data& data,
                                  NackCode code, const std::string& reason) {
  switch (code) {
    case NackCode::kMalformed:
      ++stats_.malformed;
      break;
    case NackCode::kInvalid:
      ++stats_.invalid;
      break;
    case NackCode::kConflict:
      ++stats_.conflicts;
      break;
    case NackCode::kTooLarge:
      ++stats_.too_large;
      break;
    case NackCode::kOutOfOrder:
    case NackCode::kRetry:
      break;
  }
  after_flush_.push_back(
      {session.peer, {session.producer_id, session.epoch, 0}, Nack{seq, code, reason}});
  return store_->stage_quarantine(session.producer_id, seq, data, reason);
}

void TrajectoryReceiver::on_gap(const WorkerSession& session, const Gap& gap) {
  const uint64_t recv_upto = store_->producer(session.producer_id).recv_upto;
  if (gap.from == 0 || gap.to < gap.from || gap.to > kMaxSeq) {
    ++stats_.malformed;
    return;
  }
  if (gap.from > recv_upto + 1) {
    out_of_order(session, gap.from, recv_upto);
    return;
  }
  flows_[session.producer_id].ack_due = true;
  if (gap.to <= recv_upto) return;  // restated
  stats_.gap_seqs += gap.to - recv_upto;
  store_->stage_gap(session.producer_id, Gap{recv_upto + 1, gap.to, gap.reason});
  store_->stage_watermark(session.producer_id, gap.to);
}

void TrajectoryReceiver::out_of_order(const WorkerSession& session, uint64_t seq,
                                      uint64_t recv_upto) {
  ++stats_.out_of_order;
  // Everything behind one lost message is out of order: one NACK for all of it, or the worker would
  // go back once for each. tick() clears this, in case the NACK itself is lost.
  uint64_t& nacked = flows_[session.producer_id].out_of_order_nacked;
  if (nacked == recv_upto + 1) return;
  nacked = recv_upto + 1;
  queue(session, ack_for(session.producer_id));  // says where to go back to
  queue(session,
        Nack{seq, NackCode::kOutOfOrder,
             "seq " + std::to_string(seq) + " came, wanted " + std::to_string(recv_upto + 1)});
}

}  // namespace warproll
