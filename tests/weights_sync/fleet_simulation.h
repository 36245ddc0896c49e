// A trainer and a fleet in simulated time: one Broadcaster, several UpdateStateMachines, a network
// that loses, doubles, delays and reorders, processes that die. Arenas are modelled as two slots
// with the version that was written to them and whether all of it is there, so that what a worker
// serves can be checked after every event.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "weights_sync/broadcaster.h"
#include "weights_sync/update_state_machine.h"

namespace warproll {

Digest digest_of_version(uint64_t version);
UpdateOffer offer_of_version(uint64_t version);

struct FaultRates {  // probabilities
  double drop = 0;
  double duplicate = 0;
  double receive_fails = 0;
  double verify_fails = 0;
  double install_fails = 0;
  double reject = 0;
  double pinned = 0;  // the standby arena is held at the moment it is asked for
  int64_t max_delay_ms = 1;
  int64_t max_work_ms = 20;
};

// The group transfers of a simulated fleet: what NCCL does, by the rules that matter here. A group
// moves when all members have joined; a member that is gone breaks it. Deterministic.
class FakeGroups {
 public:
  bool death_is_noticed = true;  // false: the others hang, as with a peer that dies in silence
  bool cannot_start = false;
  std::set<std::string> culprits;  // members that break every group they are in
  int64_t transfer_ms = 40;

  struct Started {
    UpdateId id;
    std::vector<std::string> participants;
  };
  [[nodiscard]] const std::vector<Started>& started() const { return started_; }
  [[nodiscard]] size_t num_running() const { return running_.size(); }

  GroupTransfers transfers();
  void restart() { running_.clear(); }  // the trainer is gone; its part with it
  void join(const std::string& unique_id, const std::string& member);
  void leave(const std::string& member);
  void step(int64_t now_ms);
  // Of a member that has joined: nullopt = it is still receiving.
  [[nodiscard]] std::optional<Status> outcome(const std::string& unique_id,
                                              const std::string& member) const;

 private:
  struct Group {
    std::vector<std::string> participants;
    std::set<std::string> joined;
    int64_t complete_at_ms = -1;
    bool complete = false;
    bool broken = false;
  };
  static std::string name_of(const UpdateId& id) { return "group " + std::to_string(id.attempt); }
  std::map<std::string, Group> all_;  // by unique id; kept for members that are still in there
  std::map<UpdateId, std::string> running_;
  std::vector<Started> started_;
};

class FleetSimulation {
 public:
  FleetSimulation(uint32_t seed, int num_workers, BroadcasterOptions options);

  // One step of time: deliveries, results of work, ticks, heartbeats. Checks safety.
  void step();
  // Steps until `done`; false when that takes more than max_ms.
  bool run_until(const std::function<bool()>& done, int64_t max_ms);
  void run_for(int64_t ms);

  void begin_update(uint64_t version);
  void kill_trainer();
  void start_trainer();  // takes the last committed version as its own, under the next epoch
  void kill_worker(int index);
  void start_worker(int index, uint64_t serving_version);

  [[nodiscard]] bool all_serve(uint64_t version) const;
  [[nodiscard]] bool has_trainer() const { return trainer_ != nullptr; }
  [[nodiscard]] Broadcaster& trainer() { return *trainer_; }
  [[nodiscard]] bool worker_is_up(int index) const { return workers_[index].machine != nullptr; }
  [[nodiscard]] UpdateStateMachine& worker(int index) { return *workers_[index].machine; }
  [[nodiscard]] int num_workers() const { return static_cast<int>(workers_.size()); }
  [[nodiscard]] int64_t now_ms() const { return now_ms_; }
  [[nodiscard]] uint64_t last_committed() const { return last_committed_; }
  [[nodiscard]] const std::vector<std::string>& violations() const { return violations_; }
  [[nodiscard]] const std::vector<BroadcastEvent>& events() const { return events_; }
  [[nodiscard]] std::mt19937& random() { return random_; }
  bool chance(double probability);

  // From now on offers have a route `nccl` whose groups these are, and workers know it.
  void use_groups(FakeGroups* groups) { groups_ = groups; }

  FaultRates faults;
  // Messages this refuses are lost, in either direction.
  std::function<bool(int worker, const Message&, bool to_worker)> filter;
  bool work_stands_still = false;  // results of work do not come

 private:
  struct Slot {
    uint64_t version = 0;
    bool whole = false;
  };
  struct Worker {
    ProducerId id{};
    uint64_t epoch = 0;
    std::unique_ptr<UpdateStateMachine> machine;  // null = the process is down
    Slot slots[2];
    int serving_slot = 0;
    std::optional<UpdateId> leased_to;
    std::optional<UpdateStart> in_group;  // receiving with others
    int64_t next_heartbeat_ms = 0;
  };
  struct Delivery {
    int64_t at_ms = 0;
    int worker = 0;
    bool to_worker = false;
    Envelope envelope;
    Message message;
  };
  struct Result {
    int64_t at_ms = 0;
    int worker = 0;
    uint64_t epoch = 0;
    std::function<UpdateActions(UpdateStateMachine&)> apply;
  };

  void post(int worker, bool to_worker, Message message);
  void perform(int index, const UpdateActions& actions);
  void schedule(int index, std::function<UpdateActions(UpdateStateMachine&)> apply);
  void heartbeat(int index);
  void step_groups();
  [[nodiscard]] UpdateOffer make_offer(uint64_t version) const;
  void drain_trainer();
  void check(int index);
  void violation(const std::string& text);

  std::mt19937 random_;
  BroadcasterOptions options_;
  int64_t now_ms_ = 1'000'000;
  uint64_t trainer_epoch_ = 0;
  std::unique_ptr<Broadcaster> trainer_;
  std::vector<Worker> workers_;
  std::vector<Delivery> network_;
  std::deque<Result> results_;
  uint64_t last_committed_ = 1;
  std::set<uint64_t> committed_{1};  // ever
  std::vector<std::string> violations_;
  std::vector<BroadcastEvent> events_;
  FakeGroups* groups_ = nullptr;
};

// Times short enough for simulations of a few seconds.
inline BroadcasterOptions quick_options() {
  BroadcasterOptions options;
  options.deadline_ms = 3'000;
  options.commit_grace_ms = 500;
  options.accept_ms = 500;
  options.regroup_ms = 100;
  options.restate_ms = 100;
  options.retry_ms = 50;
  options.liveness_ms = 1'000;
  options.straggler_ms = 300;
  return options;
}

inline int count_events(const FleetSimulation& fleet, BroadcastEventKind kind) {
  return static_cast<int>(
      std::count_if(fleet.events().begin(), fleet.events().end(),
                    [kind](const BroadcastEvent& event) { return event.kind == kind; }));
}

}  // namespace warproll
