// Broadcaster: the trainer's half of the update protocol for a fleet, as a passive, deterministic
// core: messages of workers, the trainer's wishes and the time go in; messages to workers and
// events for people come out. It moves no weight bytes (a BroadcastSource does) and keeps nothing
// on disk: after a trainer restart a new Broadcaster with a higher trainer_epoch learns from the
// workers' HELLO what they serve.
//
// At most two offers live at a time:
//   pending  being prepared; decided (committed or aborted) by the policy, at latest at the deadline
//   target   the newest committed one: every live worker must come to serve it
// Each worker's goal is the pending offer if there is one, else the target. Late joiners, restarted
// workers, and those dropped from a decision get their goal by the same steps, each at its own
// pace:
//
//   stage        sent (restated)  left by
//   None         -                serving != goal and the retry time has come: Begun or RollingBack
//   Begun        Begin            Accept, Defer, Reject, Failed
//   Deferred     Begin            Accept, Failed
//   Accepted     -                pending: all live workers have answered; target: at once: Started
//   Started      Start            Ready, Failed
//   Ready        -                the offer is committed: Committing; aborted: Aborting
//   Committing   Commit           Committed, or a heartbeat that shows the goal: None
//   Aborting     Abort            Failed, or a heartbeat that shows no update: None
//   RollingBack  Rollback         RollbackDone
//   Rejected     -                another goal, or the worker restarts
//   GaveUp       -                another goal, or the offer is committed (then it is retried)
//
// A worker that is silent for liveness_ms is dropped from decisions and keeps nobody waiting.
//
// Groups (GroupTransfers): workers that accepted on such a route start as one group. When a member
// fails, is lost or restarts before the transfer is complete, or the root's part fails, the group is
// broken: the root's part is stopped, the members that are not Ready are aborted, and all of them
// are retried together. After group_attempts a worker gets a group of its own, so that one that
// breaks every group does not keep the others from the version.
// Thread: one; no call blocks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/messages.h"
#include "protocol/status.h"
#include "weights_sync/broadcast_transport.h"

namespace warproll {

struct UpdateOffer {
  uint64_t weight_version = 0;  // not 0
  Digest weight_digest{};       // zero = not known before the first worker is Ready
  std::string manifest;         // encode_manifest()
  uint64_t stream_bytes = 0;    // for the report
  // A worker gets the first one that its HELLO lists and that suits it.
  std::vector<TransportRoute> routes;
};

enum class CommitRule : uint8_t {
  kAll,     // every live worker is Ready; otherwise the update is aborted at the deadline
  kQuorum,  // at least `quorum` are Ready, and the others too or straggler_ms has passed since
};
struct BroadcasterOptions {
  uint64_t trainer_epoch = 0;  // higher than any earlier trainer's of this fleet
  CommitRule rule = CommitRule::kAll;
  uint32_t quorum = 1;
  uint32_t straggler_ms = 5'000;
  uint32_t deadline_ms = 600'000;     // from begin_update to the decision
  uint32_t commit_grace_ms = 10'000;  // workers wait that much longer than the decision takes
  uint32_t accept_ms = 10'000;        // longest wait for silent workers before the others start
  uint32_t regroup_ms = 1'000;        // a later group waits so long for those that are coming
  uint32_t group_attempts = 2;        // after so many, a worker is alone in its group
  uint32_t restate_ms = 500;
  uint32_t retry_ms = 500;  // after a failure; doubles up to 32 times that
  uint32_t liveness_ms = 10'000;
  uint32_t max_attempts = 3;  // for a pending update; without limit for the target
};

struct BroadcastMessage {
  ProducerId to{};
  Message message;
};

enum class BroadcastEventKind : uint8_t {
  kBegun,
  kWorkerJoined,
  kWorkerLost,
  kWorkerAccepted,
  kWorkerDeferred,
  kWorkerRejected,
  kWorkerReady,
  kWorkerFailed,
  kWorkerCommitted,
  kWorkerRolledBack,
  kCommitted,  // decided
  kAborted,    // decided
  kRollback,   // asked for
  kConverged,  // every live worker serves the target
};
struct BroadcastEvent {
  BroadcastEventKind kind = BroadcastEventKind::kBegun;
  uint64_t weight_version = 0;
  std::string worker;  // name, empty = the fleet
  std::string text;    // one line for people
};

struct WorkerUpdateReport {
  ProducerId producer_id{};
  std::string worker_name;
  bool committed = false;  // serves the version
  uint32_t attempts = 0;
  uint64_t received_bytes = 0;
  uint32_t receive_ms = 0;
  uint64_t stall_us = 0;
  uint32_t stall_steps = 0;
  uint32_t in_flight_sequences = 0;
  std::string reason;  // of the last rejection, deferral or failure
};
struct UpdateReport {
  uint64_t weight_version = 0;
  bool decided = false;
  bool committed = false;
  bool converged = false;
  std::string reason;         // why it was aborted
  int64_t decision_ms = 0;    // begin_update to decision
  int64_t converged_ms = 0;   // begin_update to the first moment when all live workers served it
  uint64_t stream_bytes = 0;  // for one worker
  std::vector<WorkerUpdateReport> workers;
};

struct FleetWorker {
  ProducerId producer_id{};
  std::string worker_name;
  bool live = false;
  WeightStatus weights;
  std::string stage;  // "started" ...
};

class Broadcaster {
 public:
  explicit Broadcaster(BroadcasterOptions options);
  ~Broadcaster();
  Broadcaster(const Broadcaster&) = delete;
  Broadcaster& operator=(const Broadcaster&) = delete;

  // Starts a new update; one that is still pending is aborted first. kInvalidArgument: no version,
  // no manifest, no route.
  Status begin_update(UpdateOffer offer, int64_t now_ms);
  // Takes the offer as committed already (trainer start): workers that serve it are left alone, the
  // others get it.
  Status adopt(UpdateOffer offer, int64_t now_ms);
  void abort_update(const std::string& reason, int64_t now_ms);
  // The fleet goes back to the version committed before the target: by a flip where it is still
  // whole, by transfer elsewhere (its source must still be offered). kFailedPrecondition when that
  // is another version; then begin_update it.
  Status rollback(uint64_t to_version, int64_t now_ms);

  // Any message of a worker; HELLO makes it known, other messages of unknown ones are ignored.
  void on_message(const Envelope& from, const Message& message, int64_t now_ms);
  // The worker's connection is gone or it said Bye; a later HELLO brings it back.
  void on_worker_lost(const ProducerId& worker, const std::string& why, int64_t now_ms);
  void tick(int64_t now_ms);

  [[nodiscard]] std::vector<BroadcastMessage> take_outgoing();
  [[nodiscard]] std::vector<BroadcastEvent> take_events();

  [[nodiscard]] bool has_pending() const { return pending_ != nullptr; }
  [[nodiscard]] uint64_t pending_version() const;
  [[nodiscard]] uint64_t target_version() const;
  [[nodiscard]] uint64_t rollback_version() const;  // what rollback() can go to; 0 = nothing
  // Every live worker serves the target and nothing is pending.
  [[nodiscard]] bool converged() const;
  [[nodiscard]] std::vector<FleetWorker> workers() const;
  // Of the update begun, adopted or rolled back to last.
  [[nodiscard]] UpdateReport report() const;

 private:
  enum class Stage : uint8_t {
    kNone,
    kBegun,
    kDeferred,
    kAccepted,
    kStarted,
    kReady,
    kCommitting,
    kAborting,
    kRollingBack,
    kRejected,
    kGaveUp,
  };
  struct Offer;   // an UpdateOffer and when it was made
  struct Group;   // a transfer to several workers at once
  struct Worker;  // what is known of a worker, and its stage
  static std::string_view stage_name(Stage stage);

  void on_hello(const Envelope& from, const Hello& hello, int64_t now_ms);
  void on_answer(Worker& worker, const Message& message, int64_t now_ms);
  void on_ready(Worker& worker, const UpdateReady& ready, int64_t now_ms);
  void on_failed(Worker& worker, const std::string& reason, int64_t now_ms);
  void on_committed(Worker& worker, const UpdateCommitted& committed, int64_t now_ms);
  void on_weight_status(Worker& worker, const WeightStatus& status);

  void advance(int64_t now_ms);
  void advance_worker(Worker& worker, int64_t now_ms);
  void leave_old_goal(Worker& worker, int64_t now_ms);
  void begin_worker(Worker& worker, int64_t now_ms);
  void start_accepted(int64_t now_ms);
  void start_members(const std::vector<Worker*>& members, int64_t now_ms);
  void watch_groups(int64_t now_ms);
  void break_group(const std::shared_ptr<Group>& group, const std::string& why, int64_t now_ms);
  [[nodiscard]] std::string who_left(const std::shared_ptr<Group>& group) const;
  [[nodiscard]] bool awaits_answer(const Offer& offer) const;
  [[nodiscard]] bool awaits_members(const Offer& offer, size_t route_index, int64_t until_ms) const;
  [[nodiscard]] uint32_t time_left_ms(const Offer& offer, int64_t now_ms) const;
  void restate(Worker& worker, int64_t now_ms);
  void decide(int64_t now_ms);
  void commit_pending(int64_t now_ms);
  void abort_pending(const std::string& reason, int64_t now_ms);
  void note_convergence(int64_t now_ms);

  [[nodiscard]] const std::shared_ptr<Offer>& goal() const;
  [[nodiscard]] static bool serves(const Worker& worker, const Offer& offer);
  [[nodiscard]] UpdateId next_id(uint64_t version);
  static WorkerUpdateReport& report_of(Offer& offer, const Worker& worker);
  void send(Worker& worker, Message message, int64_t now_ms);
  void note(BroadcastEventKind kind, const Worker* worker, uint64_t version, std::string text);

  const BroadcasterOptions options_;
  uint32_t last_attempt_ = 0;
  std::shared_ptr<Offer> pending_;
  std::shared_ptr<Offer> target_;
  std::shared_ptr<Offer> before_target_;
  bool rolling_back_ = false;  // the target was set by rollback()
  std::map<ProducerId, Worker> workers_;
  std::vector<std::shared_ptr<Group>> groups_;  // running
  std::vector<BroadcastMessage> outgoing_;
  std::vector<BroadcastEvent> events_;
  std::shared_ptr<Offer> reported_;
};

}  // namespace warproll
