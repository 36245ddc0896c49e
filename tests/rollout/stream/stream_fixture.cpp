#include "tests/rollout/stream/stream_fixture.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace warproll::stream_testing {

namespace fs = std::filesystem;

TempFolder::TempFolder() {
  std::string name = (fs::temp_directory_path() / "warproll-stream-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
  root_ = name;
}

TempFolder::~TempFolder() {
  std::error_code error;
  fs::remove_all(root_, error);
}

Trajectory make_trajectory(const std::string& task_id, int32_t sample_index, std::mt19937_64& rng,
                           size_t metadata_bytes, bool routes) {
  constexpr int32_t kPromptTokens = 3;
  const auto response_tokens = static_cast<int32_t>(1 + rng() % 6);
  Trajectory out;
  out.task_id = out.group_id = task_id;
  out.sample_index = sample_index;
  out.prompt_len = kPromptTokens;
  for (int32_t i = 0; i < kPromptTokens + response_tokens; ++i) {
    const bool sampled = i >= kPromptTokens;
    const float logprob = sampled ? -0.001f * static_cast<float>(1 + rng() % 4000) : 0.0f;
    out.token_ids.push_back(static_cast<int32_t>(rng() % 100));
    out.loss_mask.push_back(sampled ? 1 : 0);
    out.logprobs.push_back(logprob);
    out.raw_logprobs.push_back(logprob);
    out.support_logmass.push_back(0.0f);
  }
  Digest digest{};
  digest[0] = 9;
  out.version_runs = {{kPromptTokens, 1}};
  out.version_digests = {{1, digest}};
  if (routes) {
    RoutedExperts experts;
    experts.num_tokens = kPromptTokens + response_tokens - 1;
    experts.num_layers = 2;
    experts.top_k = 2;
    for (int32_t i = 0; i < experts.num_tokens * 4; ++i) {
      experts.data.push_back(static_cast<uint8_t>(i % 2 == 0 ? rng() % 4 : 4 + rng() % 4));
    }
    out.routed_experts = experts;
  }
  out.finish_reason = FinishReason::kStop;
  out.sampling.seed = rng();
  out.model = "fake";
  out.activation_dtype = "f32";
  out.engine_version = "test";
  out.metadata = std::string(metadata_bytes, 'm');
  return out;
}

ProducerId producer_id(uint8_t number) {
  ProducerId id{};
  id[0] = 0xab;
  id[15] = number;
  return id;
}

Trajectory identified(Trajectory trajectory, const ProducerId& producer_id, uint64_t epoch,
                      uint64_t seq) {
  trajectory.producer_id = producer_id;
  trajectory.epoch = epoch;
  trajectory.seq = seq;
  trajectory.trajectory_id = to_hex(producer_id) + "-" + std::to_string(seq);
  trajectory.timings.sealed_ns = 5;
  return trajectory;
}

Data data_of(const Trajectory& trajectory) {
  Data data;
  const Status status = encode_trajectory(trajectory, &data.record, &data.tensors);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return data;
}

Task make_task(const std::string& task_id, int32_t group_size) {
  Task task;
  task.task_id = task_id;
  task.group_size = group_size;
  task.prompt_ids = {1, 2, 3};
  return task;
}

std::unique_ptr<SampleLog> open_log(const std::string& directory) {
  SampleLogOptions options;
  options.directory = directory;
  options.durability = Durability::kOs;
  options.batch_wait_ms = 0;
  options.min_free_bytes = 0;
  auto log = SampleLog::open(options);
  if (!log.ok()) throw std::runtime_error(log.status().to_string());
  return *std::move(log);
}

Sealed seal(SampleLog& log, Trajectory trajectory) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const Result<Sealed> sealed = log.append(std::move(trajectory), deadline).get();
  if (!sealed.ok()) throw std::runtime_error(sealed.status().to_string());
  return *sealed;
}

ProducerSession::Sources test_sources() {
  return {.hello =
              [] {
                Hello hello;
                hello.worker_name = "w";
                hello.state = WorkerState::kServing;
                return hello;
              },
          .heartbeat = [] { return Heartbeat{}; }};
}

TrainerStreamOptions trainer_options(const std::string& directory) {
  TrainerStreamOptions options;
  options.receiver.store.directory = directory;
  options.receiver.store.sync = false;  // power loss is not what these tests simulate
  return options;
}

std::unique_ptr<TrainerStream> open_trainer(const TrainerStreamOptions& options, SteadyTime now) {
  auto trainer = TrainerStream::open(options, now);
  if (!trainer.ok()) throw std::runtime_error(trainer.status().to_string());
  return *std::move(trainer);
}

std::vector<PeerMessage> outgoing(TrainerStream& trainer) { return outgoing(trainer.receiver()); }

std::vector<PeerMessage> outgoing(TrajectoryReceiver& receiver) {
  std::vector<PeerMessage> messages;
  while (auto message = receiver.next_outgoing()) messages.push_back(std::move(*message));
  return messages;
}

std::vector<WorkerMessage> outgoing(Publisher& publisher, SteadyTime now) {
  std::vector<WorkerMessage> messages;
  while (true) {
    auto message = publisher.next_outgoing(now);
    EXPECT_TRUE(message.ok()) << message.status().to_string();
    if (!message.ok() || !message->has_value()) return messages;
    messages.push_back(std::move(**message));
  }
}

std::vector<TakenTrajectory> all_taken(TrajectoryStore& store) {
  auto taken = store.read(0, 1u << 20);
  if (!taken.ok()) throw std::runtime_error(taken.status().to_string());
  return *std::move(taken);
}

std::string contents_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> lines_of(const std::string& path) {
  std::istringstream in(contents_of(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace warproll::stream_testing
