#include "tests/rollout/stream/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "rollout/sample_log/log_reader.h"

namespace warproll::stream_testing {
namespace {

void expect_ok(const Status& status) { ASSERT_TRUE(status.ok()) << status.to_string(); }

}  // namespace

Simulation::Simulation(uint64_t seed, int num_workers, Faults faults)
    : rng_(seed), faults_(faults), options_(trainer_options(folder_.path("trainer"))) {
  options_.receiver.credit_messages = 5;
  options_.receiver.receive_hwm_messages = 12;
  options_.receiver.limits = {.max_message_bytes = 4096, .heartbeat_ms = 100, .liveness_ms = 1000};
  options_.receiver.credit_bytes = 8192;
  options_.leases = {.restate_ms = 300, .recheck_ms = 2000, .adopt_grace_ms = 500, .max_lost = 3};
  options_.jsonl = TrajectoryJsonlOptions{folder_.path("taken.jsonl"), 2000, {}};
  trainer_ = open_trainer(options_, clock_.now());
  for (int i = 0; i < num_workers; ++i) {
    auto worker = std::make_unique<SimulatedWorker>();
    worker->directory = folder_.path("worker" + std::to_string(i));
    start_worker(*worker);
    workers_.push_back(std::move(worker));
  }
}

Simulation::~Simulation() = default;

bool Simulation::chance(double probability) {
  return std::uniform_real_distribution<double>(0.0, 1.0)(rng_) < probability;
}

void Simulation::start_worker(SimulatedWorker& worker) {
  worker.log = open_log(worker.directory);
  ProducerSession::Sources sources;
  sources.hello = [&worker] {
    Hello hello;
    for (const auto& [task_id, samples] : worker.held) hello.open_task_ids.push_back(task_id);
    return hello;
  };
  sources.heartbeat = [&worker] {
    Heartbeat heartbeat;
    uint32_t num_held = 0;
    for (const auto& [task_id, samples] : worker.held) {
      num_held += static_cast<uint32_t>(samples.size());
    }
    heartbeat.running_samples = num_held;
    heartbeat.free_task_slots = num_held < 6 ? 6 - num_held : 0;
    return heartbeat;
  };
  PublisherOptions options;
  options.session = {.hello_retry_ms = 200, .reconnect_min_ms = 50, .reconnect_max_ms = 400};
  options.session.until_welcome.liveness_ms = 1000;
  options.resend_ms = 400;
  options.outbox_batch = 3;
  worker.publisher = std::make_unique<Publisher>(*worker.log, options, sources);
  connect(worker);
}

void Simulation::connect(SimulatedWorker& worker) {
  worker.to_trainer.clear();
  worker.to_worker.clear();
  worker.peer = "peer-" + std::to_string(next_peer_++);
}

void Simulation::crash_worker(SimulatedWorker& worker) {
  worker.publisher.reset();
  worker.log.reset();
  worker.held.clear();  // in memory only
  start_worker(worker);
}

void Simulation::crash_trainer() {
  trainer_.reset();
  for (auto& worker : workers_) connect(*worker);
  trainer_ = open_trainer(options_, clock_.now());
  readd_tasks();
}

void Simulation::add_tasks(int num_tasks) {
  for (int i = 0; i < num_tasks; ++i) {
    const std::string task_id = "task-" + std::to_string(tasks_.size());
    const Task task = make_task(task_id, static_cast<int32_t>(1 + rng_() % 4));
    tasks_[task_id] = task;
    expect_ok(trainer_->add_task(task));
  }
}

void Simulation::readd_tasks() {
  for (const auto& [task_id, task] : tasks_) expect_ok(trainer_->add_task(task));
}

void Simulation::run(int rounds) {
  for (int i = 0; i < rounds; ++i) {
    for (auto& worker : workers_) {
      if (chance(faults_.cut)) connect(*worker);
      if (chance(faults_.worker_crash)) crash_worker(*worker);
    }
    round(faults_);
  }
}

bool Simulation::run_to_completion() {
  const Faults none{0, 0, 0, 0, 0, 0, 0};
  for (int i = 0; i < 3000; ++i) {
    round(none);
    const bool drained = std::all_of(workers_.begin(), workers_.end(), [](const auto& worker) {
      return worker->publisher->drained() && worker->held.empty();
    });
    if (drained && trainer_->leases().num_unfinished() == 0) return true;
  }
  return false;
}

void Simulation::round(const Faults& faults) {
  clock_.advance(static_cast<uint32_t>(1 + rng_() % 60));
  for (auto& worker : workers_) {
    worker_receives(*worker);
    work(*worker, faults);
    expect_ok(worker->publisher->tick(clock_.now()));
    if (worker->publisher->reconnect_due(clock_.now())) {
      connect(*worker);
      worker->publisher->on_reconnected(clock_.now());
    }
    worker_sends(*worker, faults);
  }
  trainer_round(faults);
}

// Seals some of what it holds.
void Simulation::work(SimulatedWorker& worker, const Faults& faults) {
  if (!tasks_.empty() && chance(faults.duplicate_sample)) {
    const auto& task = std::next(tasks_.begin(), static_cast<long>(rng_() % tasks_.size()))->second;
    const auto sample_index = static_cast<int32_t>(rng_() % static_cast<size_t>(task.group_size));
    seal(*worker.log, make_trajectory(task.task_id, sample_index, rng_));
  }
  for (auto it = worker.held.begin(); it != worker.held.end();) {
    auto& samples = it->second;
    if (!samples.empty() && chance(0.4)) {
      const int32_t sample_index = *samples.begin();
      seal(*worker.log,
           make_trajectory(it->first, sample_index, rng_, rng_() % 1500, rng_() % 2 == 0));
      samples.erase(sample_index);
    }
    it = samples.empty() ? worker.held.erase(it) : std::next(it);
  }
}

void Simulation::worker_receives(SimulatedWorker& worker) {
  while (!worker.to_worker.empty()) {
    auto decoded = decode_message(worker.to_worker.front(), CodecLimits{});
    worker.to_worker.pop_front();
    ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
    const Message& message = decoded->second;
    const auto handled = worker.publisher->on_message(message, clock_.now());
    ASSERT_TRUE(handled.ok()) << handled.status().to_string();
    ASSERT_TRUE(worker.publisher->stopped_because().ok())
        << worker.publisher->stopped_because().to_string();
    if (const auto* task = std::get_if<TaskMessage>(&message)) on_task(worker, *task);
    if (const auto* ack = std::get_if<Ack>(&message)) {
      worker.credit_seq = std::max(worker.credit_seq, ack->credit_seq);
      worker.credit_bytes = ack->credit_bytes;
    }
    if (const auto* welcome = std::get_if<Welcome>(&message)) {
      worker.credit_seq = std::max(worker.credit_seq, welcome->credit_seq);
      worker.credit_bytes = welcome->credit_bytes;
    }
  }
}

// What a collector does, without generating.
void Simulation::on_task(SimulatedWorker& worker, const TaskMessage& message) {
  const Task& task = message.task;
  auto& held = worker.held[task.task_id];
  bool is_new = false;
  for (const int32_t sample_index : task.sample_indices) {
    const auto sealed = worker.log->is_sealed(task.task_id, sample_index);
    ASSERT_TRUE(sealed.ok());
    if (!*sealed) is_new |= held.insert(sample_index).second;
  }
  TaskAnswer answer = is_new ? TaskAnswer::kAccepted : TaskAnswer::kAlreadyHeld;
  if (held.empty()) {
    answer = TaskAnswer::kAlreadySealed;
    worker.held.erase(task.task_id);
  }
  worker.publisher->queue(TaskAck{task.task_id, message.lease_id, answer, {}});
}

void Simulation::worker_sends(SimulatedWorker& worker, const Faults& faults) {
  for (const WorkerMessage& message : outgoing(*worker.publisher, clock_.now())) {
    if (const auto* data = std::get_if<Data>(&message.message)) {
      check_credit(worker, message.envelope, *data);
    }
    transmit(message.envelope, message.message, faults, &worker.to_trainer);
  }
}

void Simulation::check_credit(SimulatedWorker& worker, const Envelope& envelope, const Data& data) {
  const PublisherStats stats = worker.publisher->stats();
  ASSERT_LE(envelope.seq, worker.credit_seq);
  ASSERT_LE(stats.in_flight_bytes, worker.credit_bytes);
  ASSERT_LE(stats.in_flight_messages, 5u);
  ASSERT_GT(data.record.size(), 0u);
}

void Simulation::transmit(const Envelope& envelope, const Message& message, const Faults& faults,
                          std::deque<Bytes>* queue) {
  if (chance(faults.drop)) return;
  auto frame = encode_message(envelope, message);
  ASSERT_TRUE(frame.ok()) << frame.status().to_string();
  if (chance(faults.duplicate)) queue->push_back(*frame);
  queue->push_back(*std::move(frame));
  if (queue->size() >= 2 && chance(faults.swap)) std::swap(queue->back(), *(queue->end() - 2));
}

// A crash may come before the write (all is lost but the socket's), after it and before the
// acknowledgements are sent, or after some of them.
void Simulation::trainer_round(const Faults& faults) {
  for (auto& worker : workers_) {
    while (!worker->to_trainer.empty()) {
      auto decoded = decode_message(worker->to_trainer.front(), CodecLimits{});
      worker->to_trainer.pop_front();
      ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
      const auto verdict =
          trainer_->on_message({worker->peer, decoded->first, decoded->second}, clock_.now());
      ASSERT_TRUE(verdict.ok()) << verdict.status().to_string();
    }
  }
  if (chance(faults.trainer_crash)) return crash_trainer();
  expect_ok(trainer_->advance(clock_.now()));
  if (chance(faults.trainer_crash)) return crash_trainer();
  trainer_sends(faults);
  if (chance(faults.trainer_crash)) crash_trainer();
  ASSERT_TRUE(trainer_->leases().take_failures().empty());
}

void Simulation::trainer_sends(const Faults& faults) {
  for (const PeerMessage& message : outgoing(*trainer_)) {
    for (auto& worker : workers_) {
      if (worker->peer == message.peer) {
        transmit(message.envelope, message.message, faults, &worker->to_worker);
      }
    }
  }
}

void Simulation::check() {
  expect_ok(trainer_->finish());
  std::map<std::pair<std::string, int32_t>, int> times_taken;
  const auto taken = all_taken(trainer_->receiver().store());
  for (const TakenTrajectory& item : taken) {
    ++times_taken[{item.key.task_id, item.key.sample_index}];
    for (auto& worker : workers_) {
      if (worker->log->producer_id() != item.key.producer_id) continue;
      const auto stored = worker->log->read(item.key.seq);
      ASSERT_TRUE(stored.ok()) << stored.status().to_string();
      EXPECT_EQ(stored->record, item.record);
      EXPECT_EQ(stored->tensors, item.tensors);
    }
  }
  size_t num_wanted = 0;
  for (const auto& [task_id, task] : tasks_) {
    for (int32_t i = 0; i < task.group_size; ++i) {
      EXPECT_EQ((times_taken[{task_id, i}]), 1) << task_id << " sample " << i;
      ++num_wanted;
    }
  }
  EXPECT_EQ(taken.size(), num_wanted);
  EXPECT_EQ(lines_of(folder_.path("taken.jsonl")).size(), num_wanted);
  for (auto& worker : workers_) {
    const auto accounting = worker->log->accounting();
    ASSERT_TRUE(accounting.ok());
    EXPECT_TRUE(accounting->holds()) << accounting->to_string();
    EXPECT_EQ(accounting->outbox, 0u);
  }
}

}  // namespace warproll::stream_testing
