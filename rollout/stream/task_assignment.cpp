// TaskLeases, the sending half: who gets which task, and when it is said again.
#include <algorithm>

#include "rollout/stream/task_leases.h"

namespace warproll {

using std::chrono::milliseconds;

void TaskLeases::issue(Entry& entry, const ProducerId& producer_id, SteadyTime now) {
  Worker& worker = workers_[producer_id];
  Lease lease;
  lease.producer_id = producer_id;
  lease.lease_id = next_lease_id_++;
  lease.epoch = worker.epoch;
  lease.num_samples = entry.missing.size();
  entry.lease = lease;
  worker.task_ids.insert(entry.task.task_id);
  worker.free_slots -= static_cast<int64_t>(lease.num_samples);
  ++stats_.issued;
  send(entry, now);
}

void TaskLeases::send(Entry& entry, SteadyTime now) {
  ++stats_.sent;
  entry.lease->last_sent = now;
  TaskMessage message{entry.task, entry.lease->lease_id};
  message.task.sample_indices.assign(entry.missing.begin(), entry.missing.end());
  outgoing_.push_back({entry.lease->producer_id, std::move(message)});
}

void TaskLeases::tick(SteadyTime now) {
  if (now >= next_scan_) {
    next_scan_ = now + milliseconds(options_.restate_ms / 4 + 1);
    restate(now);
  }
  if (!may_issue(now)) return;
  while (!open_.empty()) {
    const auto it = tasks_.find(open_.front());
    if (it == tasks_.end() || it->second.lease) {
      open_.pop_front();
      continue;
    }
    ProducerId producer_id{};
    if (pick_worker(it->second.missing.size(), &producer_id) == nullptr) return;
    open_.pop_front();
    issue(it->second, producer_id, now);
  }
}

void TaskLeases::restate(SteadyTime now) {
  for (auto& [producer_id, worker] : workers_) {
    if (!worker.connected) continue;
    for (const std::string& task_id : worker.task_ids) {
      Entry& entry = tasks_.at(task_id);
      const Lease& lease = *entry.lease;
      if (lease.sealed || lease.draining) continue;
      const uint32_t wait_ms = lease.acked ? options_.recheck_ms : options_.restate_ms;
      if (now - lease.last_sent >= milliseconds(wait_ms)) send(entry, now);
    }
  }
}

bool TaskLeases::may_issue(SteadyTime now) const {
  const milliseconds grace(options_.adopt_grace_ms);
  if (now < started_ + grace) return false;
  if (now >= started_ + 4 * grace) return true;
  return std::all_of(workers_.begin(), workers_.end(), [](const auto& item) {
    return !item.second.connected || item.second.watermark >= item.second.hello_last_seq;
  });
}

// The worker with the most room. One that has nothing to do takes a group of any size: it answers
// kRejected when that can never fit.
TaskLeases::Worker* TaskLeases::pick_worker(size_t num_samples, ProducerId* producer_id) {
  Worker* best = nullptr;
  for (auto& [id, worker] : workers_) {
    if (!worker.connected || !worker.serving || worker.free_slots <= 0) continue;
    const bool fits = worker.free_slots >= static_cast<int64_t>(num_samples);
    if (!fits && !worker.task_ids.empty()) continue;
    if (best != nullptr && best->free_slots >= worker.free_slots) continue;
    best = &worker;
    *producer_id = id;
  }
  return best;
}

}  // namespace warproll
