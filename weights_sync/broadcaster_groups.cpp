// Who starts together, and what becomes of a group.
#include <algorithm>
#include <utility>

#include "weights_sync/broadcaster.h"
#include "weights_sync/broadcaster_state.h"

namespace warproll {
namespace {

std::string hex(const ProducerId& id) { return to_hex(Digest(id)); }

}  // namespace

uint32_t Broadcaster::time_left_ms(const Offer& offer, int64_t now_ms) const {
  if (&offer != pending_.get()) return options_.deadline_ms;
  return static_cast<uint32_t>(std::max<int64_t>(1, offer.decide_by_ms - now_ms));
}

bool Broadcaster::awaits_answer(const Offer& offer) const {
  return std::any_of(workers_.begin(), workers_.end(), [&offer](const auto& entry) {
    const Worker& worker = entry.second;
    return worker.live && worker.stage == Stage::kBegun && worker.offer.get() == &offer;
  });
}

bool Broadcaster::awaits_members(const Offer& offer, size_t route_index, int64_t until_ms) const {
  return std::any_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
    const Worker& worker = entry.second;
    if (!worker.live || worker.offer.get() != &offer || worker.route_index != route_index) {
      return false;
    }
    if (worker.stage == Stage::kBegun) return true;
    const bool is_idle = worker.stage == Stage::kNone || worker.stage == Stage::kAborting;
    return is_idle && !serves(worker, offer) && worker.attempts < options_.group_attempts &&
           worker.retry_at_ms < until_ms;
  });
}

void Broadcaster::start_accepted(int64_t now_ms) {
  if (!goal()) return;
  Offer& offer = *goal();
  const bool is_first = goal() == pending_ && !offer.started;
  if (is_first && now_ms < offer.begun_ms + options_.accept_ms && awaits_answer(offer)) return;
  for (size_t route = 0; route < offer.offer.routes.size(); ++route) {
    std::vector<Worker*> together;
    std::vector<Worker*> alone;
    for (auto& [id, worker] : workers_) {
      if (!worker.live || worker.stage != Stage::kAccepted || worker.offer != goal()) continue;
      if (worker.route_index != route) continue;
      const bool is_apart =
          offer.offer.routes[route].group && worker.attempts > options_.group_attempts;
      (is_apart ? alone : together).push_back(&worker);
    }
    for (Worker* worker : alone) start_members({worker}, now_ms);
    if (together.empty()) continue;
    if (offer.offer.routes[route].group && !is_first) {
      if (offer.gather_since_ms < 0) offer.gather_since_ms = now_ms;
      const int64_t until_ms = offer.gather_since_ms + options_.regroup_ms;
      if (now_ms < until_ms && awaits_members(offer, route, until_ms)) continue;
      offer.gather_since_ms = -1;
    }
    start_members(together, now_ms);
  }
}

void Broadcaster::start_members(const std::vector<Worker*>& members, int64_t now_ms) {
  const std::shared_ptr<Offer> offer = members.front()->offer;
  const size_t route_index = members.front()->route_index;
  const TransportRoute& route = offer->offer.routes[route_index];
  offer->started = true;
  std::vector<std::string> participants;
  for (const Worker* worker : members) participants.push_back(hex(worker->id));
  std::shared_ptr<Group> group;
  Result<std::string> unique_id = std::string();
  if (route.group) {
    group = std::make_shared<Group>();
    group->offer = offer;
    group->route_index = route_index;
    for (const Worker* worker : members) {
      group->id = std::max(group->id, worker->update);
      group->waiting.insert(worker->id);
    }
    unique_id = route.group->start(group->id, participants, time_left_ms(*offer, now_ms));
    if (unique_id.ok()) group->unique_id = *unique_id;
    groups_.push_back(group);
  }
  for (Worker* worker : members) {
    worker->stage = Stage::kStarted;
    worker->participants = participants;
    worker->group = group;
    if (unique_id.ok()) {
      send(*worker, UpdateStart{worker->update, participants, *unique_id}, now_ms);
    }
  }
  if (!unique_id.ok()) {
    break_group(group, "the trainer cannot start it: " + unique_id.status().message(), now_ms);
  }
}

std::string Broadcaster::who_left(const std::shared_ptr<Group>& group) const {
  for (const ProducerId& id : group->waiting) {
    const Worker& worker = workers_.at(id);
    if (worker.live && worker.group == group && worker.stage == Stage::kStarted) continue;
    return worker.name + (worker.live ? " left it" : " is lost");
  }
  return {};
}

void Broadcaster::watch_groups(int64_t now_ms) {
  const std::vector<std::shared_ptr<Group>> groups = groups_;
  for (const std::shared_ptr<Group>& group : groups) {
    const GroupTransfers& transfers = *group->offer->offer.routes[group->route_index].group;
    const Result<bool> complete = transfers.progress(group->id);
    if (complete.ok() && (*complete || group->waiting.empty())) {
      transfers.stop(group->id);
      std::erase(groups_, group);
      continue;
    }
    const std::string left = who_left(group);
    if (!left.empty() || !complete.ok()) {
      break_group(group, left.empty() ? complete.status().message() : left, now_ms);
    }
  }
}

void Broadcaster::break_group(const std::shared_ptr<Group>& group, const std::string& why,
                              int64_t now_ms) {
  group->offer->offer.routes[group->route_index].group->stop(group->id);
  std::erase(groups_, group);
  std::vector<Worker*> members;
  int64_t retry_at_ms = now_ms;
  for (const ProducerId& id : group->waiting) {
    Worker& worker = workers_.at(id);
    if (worker.group != group) continue;
    if (!worker.live) {
      if (worker.stage == Stage::kStarted) worker.stage = Stage::kAborting;  // told if it is back
      continue;
    }
    if (worker.stage == Stage::kStarted) {
      const std::string reason = "its group is broken: " + why;
      send(worker, UpdateAbort{worker.update, reason}, now_ms);
      on_failed(worker, reason, now_ms);
      if (worker.stage == Stage::kNone) worker.stage = Stage::kAborting;
    }
    members.push_back(&worker);
    retry_at_ms = std::max(retry_at_ms, worker.retry_at_ms);
  }
  for (Worker* worker : members) worker->retry_at_ms = retry_at_ms;
}

}  // namespace warproll
