// Publisher: the worker's end of the trajectory stream (docs/protocol.md, S1-S9). It sends what the
// sample log's outbox holds, in order of seq and within credit, again after every reconnect from
// the first uncommitted on, and prunes the outbox by the trainer's commit acks. It keeps no samples
// itself: the log is the queue, so a crash costs nothing.
//
// The io loop of the worker:
//   for each message from the socket: on_message(); what returns false is not the publisher's
//   tick(now); when reconnect_due(now): reconnect the socket, on_reconnected(now)
//   while next_outgoing(now) gives one: send; on failure send_failed(message, status)
//   stop when stopped_because() is not ok
// The log's sealed listener should wake the loop; nothing else is needed when a sample is sealed.
//
// What comes back for a sequence number:
//   ACK recv_upto     not sent again over this connection
//   ACK commit_upto   out of the outbox
//   NACK kOutOfOrder  go back to recv_upto + 1, at once; NACK kRetry: the same after retry_ms
//   NACK other        dead letter with the reason, and a GAP in its place
//   nothing           after resend_ms without progress: go back to recv_upto + 1
//   WELCOME with a new lineage: the log rewinds to its commit_upto; what retention removed is sent
//                     as GAP
// A sample over the trainer's max_message_bytes, or one whose stored bytes are damaged, becomes a
// dead letter without being sent, and a GAP.
//
// Thread: one (the log's own threads may append meanwhile). Lifetime: the log outlives it.
// Errors: a returned Status is the log's failure; the call may be repeated. stopped_because() says
// why the session ended for good: fenced, or a trainer that has committed more than this log ever
// sealed (the log was put back from an older copy).
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "protocol/status.h"
#include "rollout/sample_log/log_types.h"
#include "rollout/stream/producer_session.h"
#include "rollout/stream/send_window.h"
#include "rollout/stream/wire.h"

namespace warproll {

class SampleLog;

struct PublisherOptions {
  SessionOptions session;
  uint32_t resend_ms = 5000;
  uint32_t retry_ms = 1000;
  size_t outbox_batch = 64;  // entries read ahead
};

struct PublisherStats {
  uint64_t sent_messages = 0;
  uint64_t sent_bytes = 0;  // record + tensors, resends included
  uint64_t resends = 0;     // times it went back
  uint64_t gaps_sent = 0;
  uint64_t dead_letters = 0;
  uint64_t nacks = 0;
  std::string last_nack;
  uint64_t rewinds = 0;         // changes of lineage
  uint64_t stale_welcomes = 0;  // with a lower commit_upto in the same lineage: ignored
  uint64_t hellos = 0;
  uint64_t reconnects = 0;
  uint64_t sent_upto = 0;
  uint64_t recv_upto = 0;
  uint64_t commit_upto = 0;
  uint64_t in_flight_messages = 0;
  uint64_t in_flight_bytes = 0;
};

class Publisher {
 public:
  // `sources` fill everything of Hello and Heartbeat but last_seq, commit_upto and lineage_id.
  Publisher(SampleLog& log, PublisherOptions options, ProducerSession::Sources sources);

  // True when the message was the session's or the stream's (WELCOME, ACK, NACK, NEED_HELLO,
  // FENCED, HEARTBEAT); the others (TASK, CANCEL, UPDATE_*, PAUSE, DRAIN) are the caller's.
  Result<bool> on_message(const Message& message, SteadyTime now);
  Status tick(SteadyTime now);
  Result<std::optional<WorkerMessage>> next_outgoing(SteadyTime now);
  // What the socket said: kInvalidArgument (too large after all) makes a dead letter; anything else
  // is tried again.
  Status send_failed(WorkerMessage message, const Status& why);
  void queue(Message message);  // TASK_ACK, UPDATE_* and the like; only while streaming()

  [[nodiscard]] bool reconnect_due(SteadyTime now) const { return session_.reconnect_due(now); }
  void on_reconnected(SteadyTime now);
  void bye(std::string reason, std::vector<std::string> open_task_ids);

  [[nodiscard]] bool streaming() const { return session_.state() == SessionState::kStreaming; }
  [[nodiscard]] const Status& stopped_because() const { return session_.stopped_because(); }
  // Everything sealed is committed, refused or a gap. Thread: any.
  [[nodiscard]] bool drained() const;
  [[nodiscard]] PublisherStats stats() const;

 private:
  Status on_welcome(const Welcome& welcome, SteadyTime now);
  Status on_ack(const Ack& ack, SteadyTime now);
  Status on_nack(const Nack& nack, SteadyTime now);
  Status give_up(uint64_t seq, NackCode code, const std::string& reason);
  void go_back(uint64_t seq);
  Result<std::optional<WorkerMessage>> next_data(SteadyTime now);
  Result<std::optional<WorkerMessage>> next_gap(uint64_t seq, uint64_t before);
  Result<std::optional<WorkerMessage>> read_for_sending(const OutboxEntry& entry);
  Status flush_notes();

  SampleLog& log_;
  const PublisherOptions options_;
  ProducerSession session_;
  SendWindow window_;
  std::deque<OutboxEntry> ahead_;  // read from the outbox, not yet sent
  std::vector<uint64_t> to_note_;  // sent, not yet noted in the log
  SteadyTime last_progress_{};
  SteadyTime not_before_{};  // after NACK kRetry
  PublisherStats stats_;
};

}  // namespace warproll
