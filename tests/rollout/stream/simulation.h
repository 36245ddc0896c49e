// A trainer and its workers on a network that drops, doubles, swaps and cuts, in simulated time; the
// stores and logs are real. Everything follows from the seed (but how the log's own threads batch).
// Messages go through the codec, as on the wire.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/rollout/stream/stream_fixture.h"

namespace warproll::stream_testing {

struct Faults {
  double drop = 0.05;
  double duplicate = 0.05;
  double swap = 0.05;
  double cut = 0.02;              // a round in which a connection breaks
  double worker_crash = 0.03;     // a round in which a worker dies and starts anew
  double trainer_crash = 0.03;    // the same for the trainer, at one of three instants
  double duplicate_sample = 0.0;  // a worker makes a sample that nobody asked it for
};

struct SimulatedWorker {
  std::string directory;
  std::unique_ptr<SampleLog> log;
  std::unique_ptr<Publisher> publisher;
  std::string peer;
  std::deque<Bytes> to_trainer;
  std::deque<Bytes> to_worker;
  std::map<std::string, std::set<int32_t>> held;  // tasks accepted, samples not sealed
  // As last heard, to check that what is sent keeps to it:
  uint64_t credit_seq = 0;
  uint64_t credit_bytes = 0;
};

class Simulation {
 public:
  Simulation(uint64_t seed, int num_workers, Faults faults);
  ~Simulation();

  void add_tasks(int num_tasks);
  void run(int rounds);      // with faults
  bool run_to_completion();  // without; false = it did not end
  void crash_worker(SimulatedWorker& worker);
  void crash_trainer();
  // Every asked-for sample once, S9 in every log, records as logged, JSONL complete.
  void check();

  [[nodiscard]] TrainerStream& trainer() { return *trainer_; }
  [[nodiscard]] std::vector<std::unique_ptr<SimulatedWorker>>& workers() { return workers_; }
  std::mt19937_64& rng() { return rng_; }
  [[nodiscard]] const std::map<std::string, Task>& tasks() const { return tasks_; }
  void readd_tasks();  // after a rollback or a restart of the trainer

 private:
  bool chance(double probability);
  void start_worker(SimulatedWorker& worker);
  void connect(SimulatedWorker& worker);
  void round(const Faults& faults);
  void work(SimulatedWorker& worker, const Faults& faults);
  void worker_receives(SimulatedWorker& worker);
  void worker_sends(SimulatedWorker& worker, const Faults& faults);
  void on_task(SimulatedWorker& worker, const TaskMessage& message);
  void trainer_round(const Faults& faults);
  void trainer_sends(const Faults& faults);
  void transmit(const Envelope& envelope, const Message& message, const Faults& faults,
                std::deque<Bytes>* queue);
  void check_credit(SimulatedWorker& worker, const Envelope& envelope, const Data& data);

  TempFolder folder_;
  TestClock clock_;
  std::mt19937_64 rng_;
  Faults faults_;
  TrainerStreamOptions options_;
  std::unique_ptr<TrainerStream> trainer_;
  std::vector<std::unique_ptr<SimulatedWorker>> workers_;
  std::map<std::string, Task> tasks_;
  uint64_t next_peer_ = 1;
};

}  // namespace warproll::stream_testing
