// What the stream's tests share: folders, trajectories from a seed, a trainer and workers without
// sockets, and the clock they see.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "protocol/codec.h"
#include "rollout/sample_log/sample_log.h"
#include "rollout/stream/publisher.h"
#include "rollout/stream/trainer_stream.h"

namespace warproll::stream_testing {

class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  [[nodiscard]] std::string path(const std::string& name) const { return (root_ / name).string(); }

 private:
  std::filesystem::path root_;
};

// The clock of a test: starts at an arbitrary time and moves only when told.
class TestClock {
 public:
  [[nodiscard]] SteadyTime now() const { return now_; }
  SteadyTime advance(uint32_t ms) { return now_ += std::chrono::milliseconds(ms); }

 private:
  SteadyTime now_ = SteadyTime(std::chrono::hours(1));
};

// A well-formed trajectory; the log fills in producer, epoch, seq, trajectory_id.
Trajectory make_trajectory(const std::string& task_id, int32_t sample_index, std::mt19937_64& rng,
                           size_t metadata_bytes = 10, bool routes = false);
// The same with an identity, and as DATA of that producer.
ProducerId producer_id(uint8_t number);
Trajectory identified(Trajectory trajectory, const ProducerId& producer_id, uint64_t epoch,
                      uint64_t seq);
Data data_of(const Trajectory& trajectory);
Task make_task(const std::string& task_id, int32_t group_size = 1);

std::unique_ptr<SampleLog> open_log(const std::string& directory);
// Seals and waits until it is durable.
Sealed seal(SampleLog& log, Trajectory trajectory);

ProducerSession::Sources test_sources();
TrainerStreamOptions trainer_options(const std::string& directory);
std::unique_ptr<TrainerStream> open_trainer(const TrainerStreamOptions& options, SteadyTime now);

// A trainer's outgoing messages, all of them.
std::vector<PeerMessage> outgoing(TrainerStream& trainer);
std::vector<PeerMessage> outgoing(TrajectoryReceiver& receiver);
std::vector<WorkerMessage> outgoing(Publisher& publisher, SteadyTime now);

// The messages of one type among them.
template <typename T, typename Envelopes>
std::vector<T> only(const Envelopes& messages) {
  std::vector<T> found;
  for (const auto& message : messages) {
    if (const auto* value = std::get_if<T>(&message.message)) found.push_back(*value);
  }
  return found;
}

// Everything taken, in order.
std::vector<TakenTrajectory> all_taken(TrajectoryStore& store);
std::vector<std::string> lines_of(const std::string& path);
std::string contents_of(const std::string& path);

}  // namespace warproll::stream_testing
