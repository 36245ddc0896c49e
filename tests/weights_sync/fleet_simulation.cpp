#include "tests/weights_sync/fleet_simulation.h"

#include <algorithm>
#include <utility>

namespace warproll {
namespace {
constexpr int64_t kStepMs = 5;
constexpr int64_t kHeartbeatMs = 100;
}  // namespace

Digest digest_of_version(uint64_t version) {
  Digest digest{};
  digest[0] = 0xd1;
  for (int i = 0; i < 8; ++i) digest[8 + i] = static_cast<uint8_t>(version >> (8 * i));
  return digest;
}

UpdateOffer offer_of_version(uint64_t version) {
  UpdateOffer offer;
  offer.weight_version = version;
  offer.weight_digest = digest_of_version(version);
  offer.manifest = "manifest of version " + std::to_string(version);
  offer.stream_bytes = 1000;
  offer.routes = {{"tcp", "tcp://127.0.0.1:5555", ""}};
  return offer;
}

UpdateOffer FleetSimulation::make_offer(uint64_t version) const {
  UpdateOffer offer = offer_of_version(version);
  if (groups_ != nullptr) {
    TransportRoute route{"nccl", "", ""};
    route.group = groups_->transfers();
    offer.routes.insert(offer.routes.begin(), route);
  }
  return offer;
}

FleetSimulation::FleetSimulation(uint32_t seed, int num_workers, BroadcasterOptions options)
    : random_(seed), options_(options) {
  workers_.resize(num_workers);
  for (int i = 0; i < num_workers; ++i) {
    workers_[i].id[0] = 0xaa;
    workers_[i].id[15] = static_cast<uint8_t>(i + 1);
    start_worker(i, 1);
  }
  start_trainer();
}

bool FleetSimulation::chance(double probability) {
  return std::uniform_real_distribution<>(0, 1)(random_) < probability;
}

void FleetSimulation::violation(const std::string& text) {
  violations_.push_back("at " + std::to_string(now_ms_) + " ms: " + text);
}

void FleetSimulation::start_trainer() {
  BroadcasterOptions options = options_;
  options.trainer_epoch = ++trainer_epoch_;
  trainer_ = std::make_unique<Broadcaster>(options);
  if (!trainer_->adopt(make_offer(last_committed_), now_ms_).ok()) violation("adopt failed");
  drain_trainer();
}

void FleetSimulation::kill_trainer() {
  trainer_.reset();
  if (groups_ != nullptr) groups_->restart();
}

void FleetSimulation::begin_update(uint64_t version) {
  if (!trainer_->begin_update(make_offer(version), now_ms_).ok()) violation("begin failed");
  drain_trainer();
}

void FleetSimulation::kill_worker(int index) {
  workers_[index].machine.reset();
  workers_[index].in_group.reset();
  if (groups_ != nullptr) groups_->leave(to_hex(Digest(workers_[index].id)));
}

void FleetSimulation::start_worker(int index, uint64_t serving_version) {
  Worker& worker = workers_[index];
  ++worker.epoch;
  UpdateStateMachineOptions options;
  options.producer_id_hex = to_hex(Digest(worker.id));
  options.defer_retry_ms = 50;
  options.pin_max_ms = 1000;
  worker.machine = std::make_unique<UpdateStateMachine>(
      options, VersionName{serving_version, digest_of_version(serving_version)});
  worker.slots[0] = {serving_version, true};
  worker.slots[1] = {};
  worker.serving_slot = 0;
  worker.leased_to.reset();
  worker.next_heartbeat_ms = now_ms_;
}

bool FleetSimulation::all_serve(uint64_t version) const {
  return std::all_of(workers_.begin(), workers_.end(), [version](const Worker& worker) {
    return worker.machine && worker.machine->serving().weight_version == version;
  });
}

void FleetSimulation::post(int worker, bool to_worker, Message message) {
  if (filter && !filter(worker, message, to_worker)) return;
  const Envelope envelope{workers_[worker].id, workers_[worker].epoch, 0};
  const int copies = chance(faults.drop) ? 0 : chance(faults.duplicate) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    const int64_t delay = std::uniform_int_distribution<int64_t>(0, faults.max_delay_ms)(random_);
    network_.push_back({now_ms_ + delay, worker, to_worker, envelope, message});
  }
}

void FleetSimulation::drain_trainer() {
  for (const BroadcastMessage& out : trainer_->take_outgoing()) {
    for (int i = 0; i < num_workers(); ++i) {
      if (workers_[i].id == out.to) post(i, true, out.message);
    }
  }
  for (BroadcastEvent& event : trainer_->take_events()) {
    if (event.kind == BroadcastEventKind::kCommitted ||
        event.kind == BroadcastEventKind::kRollback) {
      last_committed_ = event.weight_version;
      committed_.insert(event.weight_version);
    }
    events_.push_back(std::move(event));
  }
}

void FleetSimulation::heartbeat(int index) {
  Worker& worker = workers_[index];
  worker.next_heartbeat_ms = now_ms_ + kHeartbeatMs;
  Hello hello;
  hello.worker_name = "w" + std::to_string(index);
  hello.weights = worker.machine->weight_status();
  hello.transports = {"directory", "tcp"};
  if (groups_ != nullptr) hello.transports.push_back("nccl");
  Heartbeat beat;
  beat.weights = hello.weights;
  post(index, false, hello);
  post(index, false, beat);
  if (trainer_) {
    Heartbeat from_trainer;
    from_trainer.trainer_epoch = trainer_epoch_;
    post(index, true, from_trainer);
  }
}

void FleetSimulation::schedule(int index, std::function<UpdateActions(UpdateStateMachine&)> apply) {
  // Work of one worker is done in order.
  int64_t at = now_ms_ + std::uniform_int_distribution<int64_t>(0, faults.max_work_ms)(random_);
  for (const Result& result : results_) {
    if (result.worker == index && result.epoch == workers_[index].epoch) {
      at = std::max(at, result.at_ms);
    }
  }
  results_.push_back({at, index, workers_[index].epoch, std::move(apply)});
}

void FleetSimulation::perform(int index, const UpdateActions& actions) {
  Worker& worker = workers_[index];
  Worker* const w = &worker;
  for (const UpdateAction& action : actions) {
    if (const auto* sent = std::get_if<SendMessage>(&action)) {
      post(index, false, sent->message);
    } else if (const auto* check = std::get_if<CheckManifest>(&action)) {
      const bool bad = chance(faults.reject);
      schedule(index, [id = check->begin.id, bad](UpdateStateMachine& machine) {
        return machine.on_checked(id,
                                  bad ? invalid_argument("tensor 'x' is missing") : ok_status());
      });
    } else if (const auto* acquire = std::get_if<AcquireStandby>(&action)) {
      schedule(index, [this, w, id = acquire->id](UpdateStateMachine& machine) {
        StandbyAnswer answer;
        if (chance(faults.pinned)) {
          answer.pinned_sequences = 3;
        } else if (w->leased_to) {
          violation("the standby arena is wanted while another update has it");
        } else {
          answer.acquired = true;
          w->leased_to = id;
        }
        return machine.on_standby(id, answer, now_ms_);
      });
    } else if (const auto* receive = std::get_if<ReceiveWeights>(&action)) {
      const UpdateId id = receive->start.id;
      if (w->leased_to != id) violation("receive without the standby arena");
      Slot& slot = w->slots[1 - w->serving_slot];
      slot = {id.weight_version, false};
      if (!receive->start.nccl_unique_id.empty()) {
        w->in_group = receive->start;
        groups_->join(receive->start.nccl_unique_id, to_hex(Digest(w->id)));
        continue;
      }
      const bool fails = chance(faults.receive_fails);
      schedule(index, [id, fails](UpdateStateMachine& machine) {
        return machine.on_received(id, fails ? data_loss("bucket 3 is damaged") : ok_status());
      });
    } else if (const auto* verify = std::get_if<VerifyWeights>(&action)) {
      const bool fails = chance(faults.verify_fails);
      schedule(index, [w, id = verify->id, fails](UpdateStateMachine& machine) {
        if (fails) return machine.on_verified(id, data_loss("a NaN in tensor 'x'"));
        if (w->leased_to == id) w->slots[1 - w->serving_slot].whole = true;
        return machine.on_verified(
            id, VerifiedWeights{digest_of_version(id.weight_version), {}, 1000, 5});
      });
    } else if (const auto* install = std::get_if<InstallWeights>(&action)) {
      const bool fails = chance(faults.install_fails);
      schedule(index, [this, w, id = install->id, fails](UpdateStateMachine& machine) {
        if (fails) return machine.on_installed(id, internal_error("the engine is stopping"));
        const Slot& slot = w->slots[1 - w->serving_slot];
        if (!slot.whole || slot.version != id.weight_version || w->leased_to != id) {
          violation("an arena that is not whole is installed");
        }
        if (committed_.count(id.weight_version) == 0) violation("installed, never committed");
        w->serving_slot = 1 - w->serving_slot;
        w->leased_to.reset();
        return machine.on_installed(id, InstallReport{10, 0, 4});
      });
    } else if (const auto* back = std::get_if<RollBack>(&action)) {
      schedule(index, [this, w, id = back->id](UpdateStateMachine& machine) {
        const Slot& slot = w->slots[1 - w->serving_slot];
        if (!slot.whole || slot.version != id.weight_version)
          violation("rolled back to a torn set");
        w->serving_slot = 1 - w->serving_slot;
        return machine.on_installed(id, InstallReport{10, 0, 4});
      });
    } else if (const auto* discarded = std::get_if<DiscardUpdate>(&action)) {
      if (w->in_group && w->in_group->id == discarded->id) {
        w->in_group.reset();
        groups_->leave(to_hex(Digest(w->id)));
      }
      schedule(index, [w, id = discarded->id](UpdateStateMachine&) {
        if (w->leased_to == id) w->leased_to.reset();
        return UpdateActions{};
      });
    }
  }
}

void FleetSimulation::step_groups() {
  groups_->step(now_ms_);
  for (int i = 0; i < num_workers(); ++i) {
    Worker& worker = workers_[i];
    if (!worker.machine || !worker.in_group) continue;
    const UpdateStart start = *worker.in_group;
    const std::optional<Status> status =
        groups_->outcome(start.nccl_unique_id, to_hex(Digest(worker.id)));
    if (!status) continue;
    worker.in_group.reset();
    perform(i, worker.machine->on_received(start.id, *status));
  }
}

void FleetSimulation::check(int index) {
  const Worker& worker = workers_[index];
  const Slot& slot = worker.slots[worker.serving_slot];
  if (!slot.whole) violation("worker " + std::to_string(index) + " serves a torn set");
  if (slot.version != worker.machine->serving().weight_version) {
    violation("worker " + std::to_string(index) + " says version " +
              std::to_string(worker.machine->serving().weight_version) + " and serves " +
              std::to_string(slot.version));
  }
  const WeightStatus status = worker.machine->weight_status();
  const Slot& other = worker.slots[1 - worker.serving_slot];
  if (status.can_rollback && (!other.whole || other.version != status.rollback_version)) {
    violation("worker " + std::to_string(index) + " offers a rollback to what is not there");
  }
}

void FleetSimulation::step() {
  now_ms_ += kStepMs;
  std::vector<Delivery> due;
  const auto late = std::stable_partition(network_.begin(), network_.end(),
                                          [this](const Delivery& d) { return d.at_ms > now_ms_; });
  std::move(late, network_.end(), std::back_inserter(due));
  network_.erase(late, network_.end());
  std::shuffle(due.begin(), due.end(), random_);
  for (const Delivery& delivery : due) {
    Worker& worker = workers_[delivery.worker];
    if (!delivery.to_worker) {
      if (trainer_) trainer_->on_message(delivery.envelope, delivery.message, now_ms_);
    } else if (worker.machine) {
      if (const auto* beat = std::get_if<Heartbeat>(&delivery.message)) {
        perform(delivery.worker, worker.machine->on_trainer_epoch(beat->trainer_epoch, now_ms_));
      }
      perform(delivery.worker, worker.machine->on_message(delivery.message, now_ms_));
      check(delivery.worker);
    }
  }
  std::deque<Result> results = std::exchange(results_, {});
  while (!results.empty()) {
    Result result = std::move(results.front());
    results.pop_front();
    Worker& worker = workers_[result.worker];
    if (!worker.machine || worker.epoch != result.epoch) continue;
    if (result.at_ms > now_ms_ || work_stands_still) {
      results_.push_back(std::move(result));
      continue;
    }
    perform(result.worker, result.apply(*worker.machine));
    check(result.worker);
  }
  if (groups_ != nullptr) step_groups();
  for (int i = 0; i < num_workers(); ++i) {
    if (!workers_[i].machine) continue;
    perform(i, workers_[i].machine->tick(now_ms_));
    if (now_ms_ >= workers_[i].next_heartbeat_ms) heartbeat(i);
  }
  if (trainer_) {
    trainer_->tick(now_ms_);
    drain_trainer();
  }
}

bool FleetSimulation::run_until(const std::function<bool()>& done, int64_t max_ms) {
  for (const int64_t end = now_ms_ + max_ms; now_ms_ < end;) {
    if (done()) return true;
    step();
  }
  return done();
}

void FleetSimulation::run_for(int64_t ms) {
  for (const int64_t end = now_ms_ + ms; now_ms_ < end;) step();
}

}  // namespace warproll
