#include <algorithm>

#include "tests/weights_sync/fleet_simulation.h"

namespace warproll {

GroupTransfers FakeGroups::transfers() {
  GroupTransfers transfers;
  transfers.start = [this](const UpdateId& id, const std::vector<std::string>& participants,
                           uint32_t) -> Result<std::string> {
    if (cannot_start) return unavailable("no device");
    started_.push_back({id, participants});
    running_[id] = name_of(id);
    all_[name_of(id)].participants = participants;
    return name_of(id);
  };
  transfers.progress = [this](const UpdateId& id) -> Result<bool> {
    const auto found = running_.find(id);
    if (found == running_.end()) return not_found("this trainer started no such group");
    const Group& group = all_[found->second];
    if (group.broken && death_is_noticed) return unavailable("rank 2 is gone");
    return group.complete;
  };
  transfers.stop = [this](const UpdateId& id) {
    const auto found = running_.find(id);
    if (found == running_.end()) return;
    Group& group = all_[found->second];
    if (!group.complete) group.broken = true;
    running_.erase(found);
  };
  return transfers;
}

void FakeGroups::join(const std::string& unique_id, const std::string& member) {
  Group& group = all_[unique_id];
  group.joined.insert(member);
  if (culprits.count(member) != 0) group.broken = true;
}

void FakeGroups::leave(const std::string& member) {
  for (auto& [name, group] : all_) {
    if (!group.complete && group.joined.erase(member) != 0) group.broken = true;
  }
}

void FakeGroups::step(int64_t now_ms) {
  for (auto& [name, group] : all_) {
    if (group.broken || group.joined.size() < group.participants.size()) continue;
    if (group.complete_at_ms < 0) group.complete_at_ms = now_ms + transfer_ms;
    if (now_ms >= group.complete_at_ms) group.complete = true;
  }
}

std::optional<Status> FakeGroups::outcome(const std::string& unique_id,
                                          const std::string& member) const {
  const Group& group = all_.at(unique_id);
  if (group.complete) return ok_status();
  const bool by_itself = culprits.count(member) != 0;
  if (group.broken && (death_is_noticed || by_itself)) {
    return unavailable("the transfer broke off");
  }
  return std::nullopt;
}

}  // namespace warproll
