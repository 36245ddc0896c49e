// tests/e2e/python_trainer.py against WorkerSocket: the two sides share no code but the schemas,
// so this is the independent check of frames, checksums and field order.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <set>
#include <sstream>

#include "protocol/sockets.h"
#include "tests/protocol/random_records.h"

extern char** environ;

namespace warproll {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class PythonTrainer {  // a child process; its first line of output is the bound endpoint
 public:
  PythonTrainer(const std::string& tasks, const std::string& out) {
    int fds[2];
    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
    std::array<std::string, 5> arguments = {WARPROLL_TEST_PYTHON,
                                            WARPROLL_SOURCE_DIR "/tests/e2e/python_trainer.py",
                                            "tcp://127.0.0.1:*", tasks, out};
    std::array<char*, 6> argv{};
    for (size_t i = 0; i < arguments.size(); ++i) argv[i] = arguments[i].data();
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0) << argv[0];
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    char c;
    while (read(fds[0], &c, 1) == 1 && c != '\n') endpoint_ += c;
    close(fds[0]);
  }
  PythonTrainer(const PythonTrainer&) = delete;
  PythonTrainer& operator=(const PythonTrainer&) = delete;
  ~PythonTrainer() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }
  int wait() {
    int status = -1;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return status;
  }

 private:
  pid_t pid_ = 0;
  std::string endpoint_;
};

// A worker without an engine: every sample it is asked for is a random trajectory.
class ScriptedWorker {
 public:
  ScriptedWorker(ZmqContext& context, const std::string& endpoint)
      : random_(42), socket_(std::move(*WorkerSocket::connect(context, endpoint, {}))) {
    envelope_.producer_id.fill(0x1F);
    envelope_.epoch = 3;
    deadline_ = Clock::now() + std::chrono::seconds(60);
    EXPECT_EQ(socket_.wait_ready(deadline_).to_string(), "OK");
  }

  void send(const Message& message, uint64_t seq = 0) {
    Envelope envelope = envelope_;
    envelope.seq = seq;
    ASSERT_EQ(socket_.send(envelope, message).to_string(), "OK");
  }
  // The next message of kind M; Acks on the way are remembered.
  template <typename M>
  M expect() {
    while (true) {
      auto received = socket_.receive(deadline_);
      EXPECT_TRUE(received.ok() && received->has_value());
      if (!received.ok() || !received->has_value()) return {};
      EXPECT_EQ((*received)->envelope.producer_id, envelope_.producer_id);
      EXPECT_EQ((*received)->envelope.epoch, envelope_.epoch);
      EXPECT_EQ((*received)->message.status().to_string(), "OK");
      const Message& message = *(*received)->message;
      if (const auto* ack = std::get_if<Ack>(&message)) last_ack_ = *ack;
      if (const auto* wanted = std::get_if<M>(&message)) return *wanted;
    }
  }
  void expect_commit(uint64_t seq) {
    while (last_ack_.commit_upto < seq && Clock::now() < deadline_) expect<Ack>();
    EXPECT_EQ(last_ack_.commit_upto, seq);
  }
  // Seals and sends one sample; returns the record as sent.
  Data seal(const std::string& task_id, int32_t sample_index, uint64_t seq) {
    Trajectory t = testing::random_trajectory(random_);
    t.producer_id = envelope_.producer_id;
    t.seq = seq;
    t.trajectory_id = to_hex(t.producer_id) + "-" + std::to_string(seq);
    t.task_id = task_id;
    t.sample_index = sample_index;
    EXPECT_EQ(validate(t, 0).to_string(), "OK");
    Data data;
    EXPECT_TRUE(encode_trajectory(t, &data.record, &data.tensors).ok());
    send(data, seq);
    return data;
  }

 private:
  testing::Random random_;
  WorkerSocket socket_;
  Envelope envelope_;
  Ack last_ack_;
  Clock::time_point deadline_;
};

class PythonTrainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("warproll_python_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    tasks_ = folder_ / "tasks.jsonl";
    out_ = folder_ / "out.jsonl";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::vector<std::string> lines() const {
    std::vector<std::string> result;
    std::ifstream file(out_);
    for (std::string line; std::getline(file, line);) result.push_back(line);
    return result;
  }
  std::filesystem::path folder_;
  std::string tasks_;
  std::string out_;
};

std::string hex64(uint64_t value) {
  std::ostringstream text;
  text << std::hex << std::setw(16) << std::setfill('0') << value;
  return text.str();
}

TEST_F(PythonTrainerTest, ServesTasksAndTakesEverySampleOnce) {
  std::ofstream(tasks_) << R"({"taskId": "a", "promptIds": [1, 2, 3], "groupSize": 2, )"
                        << R"("sampling": {"temperature": 0.5, "maxTokens": 9, "seed": 7}})"
                           "\n"
                        << R"({"taskId": "b", "promptText": "héllo", "inFlight": "pin"})"
                           "\n"
                        << R"({"taskId": "c", "promptText": "x", "env": "chess"})"
                           "\n";
  PythonTrainer trainer(tasks_, out_);
  ASSERT_THAT(trainer.endpoint(), HasSubstr("tcp://127.0.0.1:"));
  ZmqContext context;
  ScriptedWorker worker(context, trainer.endpoint());

  worker.send(Heartbeat{});
  EXPECT_EQ(worker.expect<NeedHello>().reason, "unknown producer");
  testing::Random random(1);
  Hello hello = testing::random_hello(random);
  hello.open_task_ids = {};
  worker.send(hello);
  const Welcome welcome = worker.expect<Welcome>();
  EXPECT_EQ(welcome.commit_upto, 0u);
  EXPECT_EQ(welcome.credit_seq, 256u);
  EXPECT_EQ(welcome.lineage_id.size(), 36u);

  const TaskMessage a = worker.expect<TaskMessage>();
  EXPECT_EQ(a.task.task_id, "a");
  EXPECT_EQ(a.task.group_size, 2);
  EXPECT_EQ(a.task.prompt_ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(a.task.sampling.temperature, 0.5f);
  EXPECT_EQ(a.task.sampling.top_p, 1.0f);  // the schema's default
  EXPECT_EQ(a.task.sampling.seed, 7u);
  EXPECT_EQ(a.task.sample_indices, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(validate(a.task).to_string(), "OK");
  const TaskMessage b = worker.expect<TaskMessage>();
  EXPECT_EQ(b.task.prompt_text, "héllo");
  EXPECT_EQ(b.task.in_flight, InFlightPolicy::kPin);
  const TaskMessage c = worker.expect<TaskMessage>();
  EXPECT_FALSE(validate(c.task).ok());

  worker.send(TaskAck{"a", a.lease_id, TaskAnswer::kAccepted, ""});
  worker.send(TaskAck{"b", b.lease_id, TaskAnswer::kBusy, "queue is full"});
  worker.send(TaskAck{"c", c.lease_id, TaskAnswer::kRejected, validate(c.task).message()});
  worker.send(Heartbeat{});
  const TaskMessage again = worker.expect<TaskMessage>();  // what was busy is offered again
  EXPECT_EQ(again.task, b.task);
  EXPECT_GT(again.lease_id, b.lease_id);

  std::vector<Data> sent;
  sent.push_back(worker.seal("a", 1, 1));
  worker.expect_commit(1);
  worker.seal("a", 0, 4);  // 2 and 3 are missing
  const Nack nack = worker.expect<Nack>();
  EXPECT_EQ(nack.seq, 4u);
  EXPECT_EQ(nack.code, NackCode::kOutOfOrder);
  worker.send(Gap{2, 3, "retention"});
  worker.expect_commit(3);
  worker.seal("a", 1, 4);  // a sample that was taken already is acknowledged, not taken
  worker.expect_commit(4);
  sent.push_back(worker.seal("a", 0, 5));
  sent.push_back(worker.seal("b", 0, 6));
  worker.expect_commit(6);
  EXPECT_EQ(trainer.wait(), 0);

  const auto taken = lines();
  ASSERT_EQ(taken.size(), sent.size());
  for (size_t i = 0; i < sent.size(); ++i) {
    const Trajectory t = *decode_trajectory(sent[i].record, sent[i].tensors);
    std::string ids;
    for (const int32_t id : t.token_ids) ids += (ids.empty() ? "" : ", ") + std::to_string(id);
    EXPECT_THAT(taken[i],
                HasSubstr("\"recordXxh3\": \"" + hex64(checksum64(sent[i].record)) + "\""));
    EXPECT_THAT(taken[i], HasSubstr("\"tokenIds\": [" + ids + "]"));
    EXPECT_THAT(taken[i], HasSubstr("\"promptLen\": " + std::to_string(t.prompt_len) + ","));
    EXPECT_THAT(taken[i], HasSubstr("\"tokenizerDigest\": \"" + to_hex(t.tokenizer_digest)));
  }
}

}  // namespace
}  // namespace warproll
