// What the collector's tests share: a generator that does what the test says, and a collector over a
// real log whose disk fills up when told.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "rollout/collector/collector.h"
#include "rollout/sample_log/log_reader.h"
#include "rollout/sample_log/sample_log.h"

namespace warproll::collector_testing {

using Clock = std::chrono::steady_clock;

// A TokenGenerator that does what the test says.
class ScriptedGenerator final : public TokenGenerator {
 public:
  Status submit(SampleRequest request) override {
    std::lock_guard lock(mutex_);
    if (!refuse_.ok()) return refuse_;
    if (requests_.size() - ended_ >= room_) return unavailable("generator is full");
    requests_.push_back(std::move(request));
    return ok_status();
  }
  void cancel(uint64_t request_id, const std::string& reason) override {
    GeneratedSample sample;
    sample.request_id = request_id;
    sample.finish_reason = FinishReason::kAbort;
    sample.error_type = "cancelled";
    sample.error_message = reason;
    end(std::move(sample));
  }
  std::vector<GeneratedSample> poll(Clock::time_point) override {
    std::lock_guard lock(mutex_);
    std::vector<GeneratedSample> samples;
    samples.swap(finished_);
    return samples;
  }

  [[nodiscard]] Status failure() const override {
    std::lock_guard lock(mutex_);
    return failure_;
  }

  // As the engine when a step throws: what it had comes out without its tokens.
  void fail(const Status& why) {
    std::lock_guard lock(mutex_);
    failure_ = refuse_ = why;
    for (const SampleRequest& request : requests_) {
      GeneratedSample& lost = finished_.emplace_back();
      lost.request_id = request.request_id;
      lost.finish_reason = FinishReason::kError;
      lost.error_type = kEngineFailure;
    }
  }
  void end(GeneratedSample sample) {
    std::lock_guard lock(mutex_);
    ++ended_;
    finished_.push_back(std::move(sample));
  }
  // Three tokens: two under version 1, one under version 2.
  static GeneratedSample good(uint64_t request_id) {
    GeneratedSample sample;
    sample.request_id = request_id;
    sample.token_ids = {7, 8, 9};
    sample.logprobs = {-0.5f, -0.25f, -1.0f};
    sample.raw_logprobs = {-0.6f, -0.35f, -1.1f};
    sample.support_logmass = {0.0f, -0.1f, 0.0f};
    sample.weight_versions = {1, 1, 2};
    Digest first{};
    first[0] = 1;
    Digest second{};
    second[0] = 2;
    sample.version_digests = {{1, first}, {2, second}};
    sample.events = {{5, EventKind::kFlipKeep, 2}};
    sample.text = "abc";
    sample.admitted_ns = 100;
    sample.first_token_ns = 200;
    return sample;
  }
  std::vector<SampleRequest> requests() {
    std::lock_guard lock(mutex_);
    return requests_;
  }
  void set_room(size_t room) {
    std::lock_guard lock(mutex_);
    room_ = room;
  }
  void refuse(Status why) {
    std::lock_guard lock(mutex_);
    refuse_ = std::move(why);
  }

 private:
  mutable std::mutex mutex_;
  std::vector<SampleRequest> requests_;
  std::vector<GeneratedSample> finished_;
  size_t ended_ = 0;
  size_t room_ = 1000;
  Status refuse_, failure_;
};

class CollectorTest : public ::testing::Test {
 protected:
  CollectorTest() {
    std::string name =
        (std::filesystem::temp_directory_path() / "warproll-collector-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
    folder_ = name;
    SampleLogOptions log_options;
    log_options.directory = folder_ + "/log";
    log_options.durability = Durability::kOs;
    log_options.batch_wait_ms = 0;
    log_options.retry_ms = 10;
    log_options.queue_samples = 2;
    log_options.min_free_bytes = 1000;
    log_options.free_bytes = [this] { return free_bytes_.load(); };
    log_ = *SampleLog::open(log_options);
    options_.vocab_size = 100;
    options_.max_context_tokens = 16;
    options_.max_open_samples = 8;
    options_.identity.model = "fake";
    options_.identity.engine_version = "test";
    make();
  }
  ~CollectorTest() override {
    collector_.reset();
    free_bytes_ = 1'000'000;
    log_.reset();
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }

  void make() {
    collector_ = std::make_unique<Collector>(generator_, *log_, PromptEncoder(), options_);
  }
  static Task task(const std::string& task_id, int32_t group_size = 1) {
    Task task;
    task.task_id = task_id;
    task.group_size = group_size;
    task.prompt_ids = {1, 2, 3};
    task.sampling.seed = 42;
    task.metadata = "m";
    return task;
  }
  void step() {
    const Status status = collector_->run_once(Clock::now() + std::chrono::milliseconds(5));
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  // Steps until `condition`; false after a minute.
  bool step_until(const std::function<bool()>& condition) {
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      if (Clock::now() > deadline) return false;
      step();
    }
    return true;
  }
  TaskAck offer(const Task& task, uint64_t lease_id = 1) {
    collector_->offer({task, lease_id});
    step();
    const auto answers = collector_->take_answers();
    EXPECT_EQ(answers.size(), 1u);
    return answers.empty() ? TaskAck{} : answers.back();
  }
  std::string rejection(const Task& task) {
    const TaskAck ack = offer(task);
    EXPECT_EQ(ack.answer, TaskAnswer::kRejected);
    EXPECT_TRUE(generator_.requests().empty());
    return ack.reason;
  }
  Trajectory sealed(uint64_t seq) {
    EXPECT_TRUE(step_until([&] { return log_->last_seq() >= seq; }));
    const auto stored = log_->read(seq);
    EXPECT_TRUE(stored.ok()) << stored.status().to_string();
    return *decode_stored(*stored);
  }

  std::string folder_;
  std::atomic<uint64_t> free_bytes_{1'000'000};
  ScriptedGenerator generator_;
  std::unique_ptr<SampleLog> log_;
  CollectorOptions options_;
  std::unique_ptr<Collector> collector_;
};

}  // namespace warproll::collector_testing
