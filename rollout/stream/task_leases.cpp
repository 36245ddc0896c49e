#include "rollout/stream/task_leases.h"

#include <algorithm>
#include <utility>

namespace warproll {

using std::chrono::milliseconds;

// The epoch in front makes ids rise across restarts of the trainer.
TaskLeases::TaskLeases(TaskLeasesOptions options, uint64_t trainer_epoch, SteadyTime now)
    : options_(options), started_(now), next_lease_id_((trainer_epoch << 32) + 1) {}

Status TaskLeases::add(const Task& task, const IsTaken& is_taken) {
  WARPROLL_TRY(validate(task));
  const auto known = tasks_.find(task.task_id);
  if (known != tasks_.end() && known->second.task != task) {
    return already_exists("task '" + task.task_id + "' is in the table with other content");
  }
  std::vector<int32_t> indices = task.sample_indices;
  if (indices.empty()) {
    for (int32_t i = 0; i < task.group_size; ++i) indices.push_back(i);
  }
  std::set<int32_t> missing;
  for (const int32_t sample_index : indices) {
    WARPROLL_TRY_ASSIGN(is_there, is_taken(task.task_id, sample_index));
    if (!is_there) missing.insert(sample_index);
  }
  if (missing.empty()) {
    ++stats_.finished_tasks;
    finished_.push_back(task.task_id);
    if (known != tasks_.end()) {
      drop_lease(known->second);
      tasks_.erase(known);
    }
    return ok_status();
  }
  Entry& entry = tasks_[task.task_id];
  entry.task = task;
  entry.missing = std::move(missing);
  if (!entry.lease) open_.push_back(task.task_id);
  return ok_status();
}

void TaskLeases::on_session_change(const SessionChange& change, SteadyTime now) {
  if (change.kind == SessionChangeKind::kJoined) {
    on_joined(change.session, now);
    return;
  }
  Worker& worker = workers_[change.session.producer_id];
  if (change.session.epoch < worker.epoch) return;  // the restarted one is here already
  worker.connected = worker.serving = false;
  worker.free_slots = 0;
  release_all(worker);
}

void TaskLeases::release_all(Worker& worker) {
  const auto task_ids = worker.task_ids;
  for (const std::string& task_id : task_ids) reopen(tasks_.at(task_id));
}

void TaskLeases::on_joined(const WorkerSession& session, SteadyTime now) {
  Worker& worker = workers_[session.producer_id];
  worker.connected = true;
  worker.serving = false;  // until a heartbeat says so
  worker.free_slots = 0;
  worker.epoch = session.epoch;
  worker.hello_last_seq = session.hello.last_seq;
  const std::set<std::string> held(session.hello.open_task_ids.begin(),
                                   session.hello.open_task_ids.end());
  for (const std::string& task_id : worker.task_ids) {
    Entry& entry = tasks_.at(task_id);
    Lease& lease = *entry.lease;
    if (held.contains(task_id)) {
      lease.acked = true;
      lease.sealed = lease.draining = false;
      lease.drain_seq.reset();
      lease.epoch = session.epoch;
    } else if (lease.epoch < session.epoch) {
      lease.draining = true;
      lease.drain_seq = session.hello.last_seq;
    } else if (lease.acked) {
      lease.sealed = true;
      lease.drain_seq = session.hello.last_seq;
    } else {
      send(entry, now);
    }
  }
  for (const std::string& task_id : held) {
    const auto it = tasks_.find(task_id);
    if (it == tasks_.end() || it->second.lease) continue;
    ++stats_.adopted;
    issue(it->second, session.producer_id, now);  // the worker answers kAlreadyHeld
  }
  release_drained(worker);
}

void TaskLeases::on_message(const ProducerId& producer_id, const Message& message, SteadyTime now) {
  if (const auto* ack = std::get_if<TaskAck>(&message)) on_answer(producer_id, *ack);
  if (const auto* heartbeat = std::get_if<Heartbeat>(&message)) {
    on_heartbeat(producer_id, *heartbeat, now);
  }
}

void TaskLeases::on_answer(const ProducerId& producer_id, const TaskAck& ack) {
  const auto it = tasks_.find(ack.task_id);
  if (it == tasks_.end() || !it->second.lease || it->second.lease->lease_id != ack.lease_id ||
      it->second.lease->producer_id != producer_id) {
    ++stats_.stale_answers;
    return;
  }
  Entry& entry = it->second;
  switch (ack.answer) {
    case TaskAnswer::kAccepted:
    case TaskAnswer::kAlreadyHeld:
      entry.lease->acked = true;
      entry.lease->draining = false;  // a restarted worker that says so holds it after all
      entry.lease->drain_seq.reset();
      entry.lease->sealed = false;
      return;
    case TaskAnswer::kAlreadySealed:
      entry.lease->acked = true;
      entry.lease->sealed = true;
      return;
    case TaskAnswer::kRejected:
      fail(entry, ack.reason);
      return;
    case TaskAnswer::kBusy:
      ++stats_.busy;
      workers_[producer_id].free_slots = 0;
      reopen(entry);
      return;
  }
}

void TaskLeases::on_heartbeat(const ProducerId& producer_id, const Heartbeat& heartbeat,
                              SteadyTime now) {
  const auto it = workers_.find(producer_id);
  if (it == workers_.end() || !it->second.connected) return;
  Worker& worker = it->second;
  worker.serving = heartbeat.state == WorkerState::kServing;
  worker.free_slots = heartbeat.free_task_slots;
  const bool idle = heartbeat.queued_samples == 0 && heartbeat.running_samples == 0;
  for (const std::string& task_id : worker.task_ids) {
    Entry& entry = tasks_.at(task_id);
    Lease& lease = *entry.lease;
    // What is not answered yet is not in the worker's count either.
    if (!lease.acked) worker.free_slots -= static_cast<int64_t>(lease.num_samples);
    if (lease.sealed && !lease.drain_seq) lease.drain_seq = heartbeat.last_seq;
    const bool suspicious = idle && lease.acked && !lease.sealed && !lease.draining;
    if (suspicious && now - lease.last_sent >= milliseconds(options_.restate_ms)) {
      send(entry, now);  // it works on nothing, so what became of this?
    }
  }
  release_drained(worker);
}

void TaskLeases::on_taken(const std::vector<TakenPair>& pairs) {
  for (const TakenPair& pair : pairs) {
    const auto it = tasks_.find(pair.task_id);
    if (it == tasks_.end()) continue;
    it->second.missing.erase(pair.sample_index);
    if (it->second.missing.empty()) finish(pair.task_id);
  }
}

void TaskLeases::on_watermark(const ProducerId& producer_id, uint64_t upto) {
  Worker& worker = workers_[producer_id];
  if (worker.watermark == upto) return;
  worker.watermark = upto;
  release_drained(worker);
}

void TaskLeases::release_drained(const Worker& worker) {
  std::vector<std::string> task_ids;
  for (const std::string& task_id : worker.task_ids) {
    const auto& drain_seq = tasks_.at(task_id).lease->drain_seq;
    if (drain_seq && *drain_seq <= worker.watermark) task_ids.push_back(task_id);
  }
  for (const std::string& task_id : task_ids) drained(tasks_.at(task_id));
}

// Everything the worker had sealed has come, and these samples were not among it.
void TaskLeases::drained(Entry& entry) {
  if (entry.lease->draining) {
    reopen(entry);
    return;
  }
  ++stats_.lost;
  if (++entry.times_lost < options_.max_lost) {
    reopen(entry);
    return;
  }
  fail(entry, "sealed by worker " + to_hex(entry.lease->producer_id) +
                  ", but never delivered (a dead letter or a gap of its log), " +
                  std::to_string(entry.times_lost) + " times");
}

void TaskLeases::drop_lease(Entry& entry) {
  if (!entry.lease) return;
  workers_[entry.lease->producer_id].task_ids.erase(entry.task.task_id);
  entry.lease.reset();
}

void TaskLeases::reopen(Entry& entry) {
  ++stats_.reissued;
  drop_lease(entry);
  open_.push_front(entry.task.task_id);  // it has waited longest
}

void TaskLeases::fail(Entry& entry, std::string reason) {
  ++stats_.failed_tasks;
  const ProducerId producer_id = entry.lease->producer_id;
  drop_lease(entry);
  failures_.push_back({entry.task.task_id, producer_id, std::move(reason)});
  const std::string task_id = entry.task.task_id;
  tasks_.erase(task_id);
}

void TaskLeases::finish(const std::string& task_id) {
  ++stats_.finished_tasks;
  drop_lease(tasks_.at(task_id));
  tasks_.erase(task_id);
  finished_.push_back(task_id);
}

std::optional<TaskLeases::Outgoing> TaskLeases::next_outgoing() {
  if (outgoing_.empty()) return std::nullopt;
  Outgoing message = std::move(outgoing_.front());
  outgoing_.pop_front();
  return message;
}

std::vector<TaskFailure> TaskLeases::take_failures() { return std::exchange(failures_, {}); }
std::vector<std::string> TaskLeases::take_finished() { return std::exchange(finished_, {}); }

TaskLeasesStats TaskLeases::stats() const {
  TaskLeasesStats stats = stats_;
  stats.leased_tasks =
      static_cast<uint64_t>(std::count_if(tasks_.begin(), tasks_.end(), [](const auto& item) {
        return item.second.lease.has_value();
      }));
  stats.open_tasks = tasks_.size() - stats.leased_tasks;
  return stats;
}

}  // namespace warproll
