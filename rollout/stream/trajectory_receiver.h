// TrajectoryReceiver: the trainer's end of the trajectory stream (docs/protocol.md, S1-S11). It
// knows which workers are connected, takes each trajectory at most once, and acknowledges it when
// its own store holds it.
//
// The io loop of the trainer:
//   drain the socket:  on_message(message, now) for each
//   flush(now)         one durable write for all of them; acknowledgements come only from here
//   tick(now)          heartbeats, acks restated, silent workers dropped
//   next_outgoing()    until empty: send
//
// What becomes of a DATA or GAP with sequence number q, where r = the producer's recv_upto:
//   q <= r   a resend: acked again; other content than before -> NACK kConflict, quarantined
//   q = r+1  decoded, validated, matched with its envelope. Wrong -> NACK, quarantined, r stays
//            until the worker sends GAP for it. (task, sample) taken already -> counted, r moves.
//            Else taken, r moves.
//   q > r+1  something was lost: dropped, NACK kOutOfOrder once, the worker goes back to r+1
// A replayed DATA is the same, but its envelope (the replay's session) counts for r and its record
// for what it is; so a replay never moves the watermark of the worker that made the sample.
//
// Thread: one. Lifetime: the store closes with it. Errors: what a peer does wrong is answered and
// counted, never returned; a Status means that the store failed.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/status.h"
#include "rollout/stream/trajectory_store.h"
#include "rollout/stream/wire.h"

namespace warproll {

struct TrajectoryReceiverOptions {
  TrajectoryStoreOptions store;
  uint64_t receive_hwm_messages = 1000;  // of the socket, for one peer
  uint64_t credit_messages = 400;        // uncommitted, for one worker; below half of the HWM
  uint64_t credit_bytes = 512ull << 20;  // the same in bytes; at least max_message_bytes
  Limits limits{.max_message_bytes = 256ull << 20, .heartbeat_ms = 1000, .liveness_ms = 10'000};
};

struct WorkerSession {
  ProducerId producer_id{};
  uint64_t epoch = 0;
  std::string peer;
  Hello hello;
  Heartbeat heartbeat;  // the last one; zero until the first
  SteadyTime last_heard{};
};

// kJoined: a worker said HELLO and was welcomed (also after a reconnect or restart).
// kLeft: it said BYE. kGone: silent for longer than liveness_ms.
enum class SessionChangeKind : uint8_t { kJoined, kLeft, kGone };
struct SessionChange {
  SessionChangeKind kind = SessionChangeKind::kJoined;
  WorkerSession session;
  std::string reason;                      // of kLeft and kGone
  std::vector<std::string> open_task_ids;  // given back with kLeft
};

struct TrajectoryReceiverStats {
  uint64_t taken = 0;            // staged; the store's num_taken is what is durable
  uint64_t resent = 0;           // known (producer, seq), same content
  uint64_t duplicate_pairs = 0;  // another sample of a taken (task, sample_index)
  uint64_t late_after_gap = 0;   // data for a seq that was given up as a gap
  uint64_t gap_seqs = 0;
  uint64_t out_of_order = 0;
  uint64_t malformed = 0;
  uint64_t invalid = 0;
  uint64_t conflicts = 0;
  uint64_t too_large = 0;
  uint64_t fenced = 0;
  uint64_t need_hello = 0;
  uint64_t ignored = 0;                // messages no worker may send
  uint64_t watermark_regressions = 0;  // a worker knew of a higher commit in this very lineage
  uint64_t flushes = 0;
  uint64_t flush_failures = 0;
};

// kSession: from a welcomed worker; messages that are not the receiver's own (TASK_ACK, UPDATE_*)
// are for the caller to handle. kRefused: answered, or not worth an answer.
enum class MessageVerdict : uint8_t { kSession, kRefused };

class TrajectoryReceiver {
 public:
  static Result<std::unique_ptr<TrajectoryReceiver>> open(const TrajectoryReceiverOptions& options);

  Result<MessageVerdict> on_message(PeerMessage message, SteadyTime now);
  // A frame that could not even be decoded, from this peer (sockets.h: Received).
  void on_malformed(const std::string& peer, const Envelope& envelope, const Status& why);
  // Returns the pairs that became durable. After a failure nothing is lost and nothing acked.
  Result<std::vector<TakenPair>> flush();
  void tick(SteadyTime now);
  std::optional<PeerMessage> next_outgoing();

  // Queues a message to a welcomed worker; false when it is not connected.
  bool send(const ProducerId& producer_id, Message message);
  [[nodiscard]] const std::map<ProducerId, WorkerSession>& sessions() const { return sessions_; }
  std::vector<SessionChange> take_session_changes();

  // See TrajectoryStore. rollback() welcomes every connected worker anew.
  Status mark(std::string_view name);
  Status rollback(std::string_view name);
  [[nodiscard]] TrajectoryStore& store() { return *store_; }
  [[nodiscard]] const TrajectoryReceiverStats& stats() const { return stats_; }
  [[nodiscard]] const TrajectoryReceiverOptions& options() const { return options_; }

 private:
  struct Flow {  // what is only of this connection
    bool welcome_due = true;
    bool ack_due = false;
    uint64_t out_of_order_nacked = 0;  // recv_upto for which the NACK went out, + 1
    SteadyTime next_heartbeat{};
  };
  TrajectoryReceiver(TrajectoryReceiverOptions options, std::unique_ptr<TrajectoryStore> store);

  Status on_hello(PeerMessage message, SteadyTime now);
  void refuse_unknown(const PeerMessage& message, SteadyTime now);
  void on_bye(WorkerSession& session, const Bye& bye);
  Status on_data(const WorkerSession& session, const Envelope& envelope, const Data& data);
  Status on_resend(const WorkerSession& session, uint64_t seq, const Data& data);
  Status on_next(const WorkerSession& session, const Envelope& envelope, const Data& data);
  Status reject(const WorkerSession& session, uint64_t seq, const Data& data, NackCode code,
                const std::string& reason);
  void on_gap(const WorkerSession& session, const Gap& gap);
  void out_of_order(const WorkerSession& session, uint64_t seq, uint64_t recv_upto);
  void queue(const WorkerSession& session, Message message);
  [[nodiscard]] Ack ack_for(const ProducerId& producer_id) const;
  void welcome(const WorkerSession& session);
  void welcome_everybody_anew();

  const TrajectoryReceiverOptions options_;
  std::unique_ptr<TrajectoryStore> store_;
  std::map<ProducerId, WorkerSession> sessions_;
  std::map<ProducerId, Flow> flows_;
  std::map<std::string, SteadyTime> need_hello_until_;  // by peer: no second NEED_HELLO before
  std::deque<PeerMessage> outgoing_;
  std::vector<PeerMessage> after_flush_;  // NACKs whose quarantine entry must be durable first
  std::vector<SessionChange> changes_;
  TrajectoryReceiverStats stats_;
};

}  // namespace warproll
