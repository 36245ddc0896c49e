// TaskLeases: which samples of which tasks are still to be made, and who makes them (S11-S13). The
// trainer's table; what was taken is the receiver's store's business, so the table itself needs no
// disk: after a restart the tasks are added again and what is taken is left out.
//
//   task        open -> leased (one worker, all its missing samples) -> finished | failed
//   lease       sent     TASK restated every restate_ms           TASK_ACK -> held, sealed
//               held     accepted by the worker                   samples taken -> finished
//               sealed   the worker has sealed all of it          stream passes drain_seq ->
//                        samples taken -> finished; else they are dead letters there: open again,
//                        failed after max_lost times
//               draining the worker restarted (S13)               stream passes drain_seq -> open
//   back to open at once: the worker left, went silent, or answered kBusy. kRejected fails the task.
// Only missing sample_indices are issued. Two workers may make the same sample after a lease was
// reissued; the receiver takes the first (S11).
//
// Order of calls per round of the io loop: on_message and on_session_change as they come; after
// the receiver's flush on_taken() first, then on_watermark(); then tick() and next_outgoing().
// Thread: one; passive (wire.h). Errors: failed tasks come out of take_failures(), never silent.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "protocol/status.h"
#include "rollout/stream/trajectory_receiver.h"
#include "rollout/stream/wire.h"

namespace warproll {

struct TaskLeasesOptions {
  uint32_t restate_ms = 1000;
  uint32_t recheck_ms = 30'000;  // a held lease is asked after when it made no progress
  // After a trainer restart workers get so long to come back and say what they hold, and thrice
  // more to send what they sealed, before tasks are issued: less is made twice. 0 = issue at once.
  uint32_t adopt_grace_ms = 0;
  uint32_t max_lost = 3;
};

struct TaskFailure {
  std::string task_id;
  ProducerId producer_id{};  // who said so
  std::string reason;
};

struct TaskLeasesStats {
  uint64_t open_tasks = 0;
  uint64_t leased_tasks = 0;
  uint64_t finished_tasks = 0;
  uint64_t failed_tasks = 0;
  uint64_t issued = 0;    // leases
  uint64_t sent = 0;      // TASK messages, restated ones included
  uint64_t reissued = 0;  // leases taken back
  uint64_t busy = 0;
  uint64_t adopted = 0;  // held by a worker from before the trainer's restart
  uint64_t lost = 0;     // sealed by a worker and never delivered
  uint64_t stale_answers = 0;
};

class TaskLeases {
 public:
  using IsTaken = std::function<Result<bool>(const std::string& task_id, int32_t sample_index)>;
  struct Outgoing {
    ProducerId producer_id{};
    Message message;
  };

  TaskLeases(TaskLeasesOptions options, uint64_t trainer_epoch, SteadyTime now);

  // Samples already taken are left out; a task with none left is finished at once. Adding the same
  // task again looks anew (after a rollback). kAlreadyExists: the id is there with other content.
  Status add(const Task& task, const IsTaken& is_taken);

  void on_session_change(const SessionChange& change, SteadyTime now);
  void on_message(const ProducerId& producer_id, const Message& message, SteadyTime now);
  void on_taken(const std::vector<TakenPair>& pairs);
  void on_watermark(const ProducerId& producer_id, uint64_t upto);
  void tick(SteadyTime now);
  std::optional<Outgoing> next_outgoing();

  std::vector<TaskFailure> take_failures();
  std::vector<std::string> take_finished();
  [[nodiscard]] size_t num_unfinished() const { return tasks_.size(); }
  [[nodiscard]] TaskLeasesStats stats() const;

 private:
  struct Lease {
    ProducerId producer_id{};
    uint64_t lease_id = 0;
    uint64_t epoch = 0;  // of the worker that got it
    size_t num_samples = 0;
    bool acked = false;
    bool sealed = false;
    bool draining = false;
    std::optional<uint64_t> drain_seq;  // sealed: known from the next heartbeat on
    SteadyTime last_sent{};
  };
  struct Entry {
    Task task;
    std::set<int32_t> missing;
    std::optional<Lease> lease;
    uint32_t times_lost = 0;
  };
  struct Worker {
    bool connected = false;
    bool serving = false;
    uint64_t epoch = 0;
    uint64_t hello_last_seq = 0;
    uint64_t watermark = 0;
    int64_t free_slots = 0;  // by the last heartbeat, less what was issued since
    std::set<std::string> task_ids;
  };

  void on_joined(const WorkerSession& session, SteadyTime now);
  void release_all(Worker& worker);
  void on_answer(const ProducerId& producer_id, const TaskAck& ack);
  void on_heartbeat(const ProducerId& producer_id, const Heartbeat& heartbeat, SteadyTime now);
  void release_drained(const Worker& worker);
  void reopen(Entry& entry);
  void drained(Entry& entry);
  void fail(Entry& entry, std::string reason);
  void finish(const std::string& task_id);
  void drop_lease(Entry& entry);
  void issue(Entry& entry, const ProducerId& producer_id, SteadyTime now);
  void send(Entry& entry, SteadyTime now);
  void restate(SteadyTime now);
  [[nodiscard]] bool may_issue(SteadyTime now) const;
  Worker* pick_worker(size_t num_samples, ProducerId* producer_id);

  const TaskLeasesOptions options_;
  const SteadyTime started_;
  uint64_t next_lease_id_;
  std::map<std::string, Entry> tasks_;
  std::deque<std::string> open_;  // may name tasks that are leased or gone by now: skipped
  std::map<ProducerId, Worker> workers_;
  std::deque<Outgoing> outgoing_;
  std::vector<TaskFailure> failures_;
  std::vector<std::string> finished_;
  SteadyTime next_scan_{};
  TaskLeasesStats stats_;
};

}  // namespace warproll
