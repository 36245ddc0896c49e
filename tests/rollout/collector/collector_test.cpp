#include "rollout/collector/collector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <filesystem>
#include <limits>
#include <thread>

#include "rollout/sample_log/log_reader.h"
#include "rollout/sample_log/sample_log.h"

namespace warproll {
namespace {

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
  std::mutex mutex_;
  std::vector<SampleRequest> requests_;
  std::vector<GeneratedSample> finished_;
  size_t ended_ = 0;
  size_t room_ = 1000;
  Status refuse_;
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

TEST_F(CollectorTest, MakesAllSamplesOfATaskShareOnePrompt) {
  const TaskAck ack = offer(task("a", 3), 77);
  EXPECT_EQ(ack.answer, TaskAnswer::kAccepted);
  EXPECT_EQ(ack.lease_id, 77u);
  const auto requests = generator_.requests();
  ASSERT_EQ(requests.size(), 3u);
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(requests[static_cast<size_t>(i)].sample_index, i);
    EXPECT_EQ(requests[static_cast<size_t>(i)].prompt_ids, requests[0].prompt_ids);
    EXPECT_EQ(requests[static_cast<size_t>(i)].sampling.seed, 42u);
  }
}

TEST_F(CollectorTest, SealsWhatWasGeneratedWithEveryFieldInItsPlace) {
  offer(task("a"));
  generator_.end(ScriptedGenerator::good(generator_.requests().at(0).request_id));
  const Trajectory trajectory = sealed(1);
  EXPECT_EQ(trajectory.task_id, "a");
  EXPECT_EQ(trajectory.group_id, "a");
  EXPECT_EQ(trajectory.token_ids, (std::vector<int32_t>{1, 2, 3, 7, 8, 9}));
  EXPECT_EQ(trajectory.prompt_len, 3);
  EXPECT_EQ(trajectory.loss_mask, (std::vector<uint8_t>{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(trajectory.logprobs, (std::vector<float>{0, 0, 0, -0.5f, -0.25f, -1.0f}));
  EXPECT_EQ(trajectory.raw_logprobs, (std::vector<float>{0, 0, 0, -0.6f, -0.35f, -1.1f}));
  EXPECT_EQ(trajectory.support_logmass, (std::vector<float>{0, 0, 0, 0.0f, -0.1f, 0.0f}));
  EXPECT_EQ(trajectory.version_runs, (std::vector<VersionRun>{{3, 1}, {5, 2}}));
  EXPECT_EQ(trajectory.version_digests.size(), 2u);
  EXPECT_EQ(trajectory.events, (std::vector<TrajectoryEvent>{{5, EventKind::kFlipKeep, 2}}));
  EXPECT_EQ(trajectory.role_spans, (std::vector<RoleSpan>{{3, 6, Role::kAssistant}}));
  EXPECT_EQ(trajectory.finish_reason, FinishReason::kStop);
  EXPECT_EQ(trajectory.text, "abc");
  EXPECT_EQ(trajectory.metadata, "m");
  EXPECT_EQ(trajectory.model, "fake");
  EXPECT_EQ(trajectory.timings.admitted_ns, 100);
  EXPECT_EQ(trajectory.timings.first_token_ns, 200);
  EXPECT_GT(trajectory.timings.task_received_ns, 0);
  EXPECT_TRUE(step_until([&] { return collector_->idle(); }));
  EXPECT_EQ(collector_->stats().sampled_tokens, 3u);
}

TEST_F(CollectorTest, SealsAFailedSampleWithNothingTrainableInIt) {
  offer(task("a"));
  GeneratedSample failed = ScriptedGenerator::good(generator_.requests().at(0).request_id);
  failed.finish_reason = FinishReason::kError;
  failed.error_type = "engine";
  failed.error_message = "out of blocks";
  generator_.end(failed);
  const Trajectory trajectory = sealed(1);
  EXPECT_EQ(trajectory.finish_reason, FinishReason::kError);
  EXPECT_EQ(trajectory.loss_mask, (std::vector<uint8_t>(6, 0)));
  EXPECT_EQ(trajectory.logprobs, (std::vector<float>(6, 0.0f)));
  EXPECT_EQ(trajectory.error_type, "engine");
  EXPECT_FALSE(trajectory.reward.has_value());
}

TEST_F(CollectorTest, SealsASampleThatTheLogRefusesAsAFailureThatSaysWhy) {
  offer(task("a"));
  GeneratedSample bad = ScriptedGenerator::good(generator_.requests().at(0).request_id);
  bad.logprobs[1] = std::numeric_limits<float>::quiet_NaN();
  generator_.end(bad);
  const Trajectory trajectory = sealed(1);
  EXPECT_EQ(trajectory.finish_reason, FinishReason::kError);
  EXPECT_EQ(trajectory.error_type, "invalid_sample");
  EXPECT_NE(trajectory.error_message.find("logprobs[4]"), std::string::npos)
      << trajectory.error_message;
  EXPECT_EQ(collector_->stats().samples_invalid, 1u);
}

TEST_F(CollectorTest, SealsAbortedSamplesWithWhatTheyHave) {
  offer(task("a"));
  GeneratedSample aborted = ScriptedGenerator::good(generator_.requests().at(0).request_id);
  aborted.finish_reason = FinishReason::kAbort;
  aborted.error_type = "deadline";
  generator_.end(aborted);
  const Trajectory trajectory = sealed(1);
  EXPECT_EQ(trajectory.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(trajectory.loss_mask, (std::vector<uint8_t>{0, 0, 0, 1, 1, 1}));
}

TEST_F(CollectorTest, CancelsWhatRunsAndWhatWaits) {
  generator_.set_room(1);
  offer(task("a", 2));
  ASSERT_EQ(generator_.requests().size(), 1u);
  collector_->cancel({"a", "not needed any more"});
  for (const uint64_t seq : {1, 2}) {
    const Trajectory trajectory = sealed(seq);
    EXPECT_EQ(trajectory.finish_reason, FinishReason::kAbort);
    EXPECT_EQ(trajectory.error_type, "cancelled");
    EXPECT_EQ(trajectory.error_message, "not needed any more");
  }
  EXPECT_TRUE(step_until([&] { return collector_->idle(); }));
}

TEST_F(CollectorTest, EndsAWaitingSampleAtItsDeadline) {
  generator_.set_room(0);
  Task urgent = task("a");
  urgent.deadline_ms = 1;
  EXPECT_EQ(offer(urgent).answer, TaskAnswer::kAccepted);
  const Trajectory trajectory = sealed(1);
  EXPECT_EQ(trajectory.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(trajectory.error_type, "deadline");
}

TEST_F(CollectorTest, AnswersAHeldTaskAndASealedTaskWithoutMakingItAgain) {
  offer(task("a"));
  EXPECT_EQ(offer(task("a"), 2).answer, TaskAnswer::kAlreadyHeld);
  EXPECT_EQ(collector_->open_task_ids(), (std::vector<std::string>{"a"}));
  generator_.end(ScriptedGenerator::good(generator_.requests().at(0).request_id));
  sealed(1);
  ASSERT_TRUE(step_until([&] { return collector_->idle(); }));
  EXPECT_EQ(offer(task("a"), 3).answer, TaskAnswer::kAlreadySealed);
  make();  // a restart: the log remembers
  EXPECT_EQ(offer(task("a"), 4).answer, TaskAnswer::kAlreadySealed);
  EXPECT_EQ(generator_.requests().size(), 1u);
  EXPECT_TRUE(collector_->open_task_ids().empty());
}

TEST_F(CollectorTest, MakesOnlyTheSamplesThatAreMissing) {
  offer(task("a", 3));
  generator_.end(ScriptedGenerator::good(generator_.requests().at(1).request_id));
  sealed(1);
  make();  // restarted: samples 0 and 2 are lost
  Task again = task("a", 3);
  again.sample_indices = {1, 2};
  EXPECT_EQ(offer(again).answer, TaskAnswer::kAccepted);
  ASSERT_EQ(generator_.requests().size(), 4u);
  EXPECT_EQ(generator_.requests()[3].sample_index, 2);
}

TEST_F(CollectorTest, RejectsAnUnknownEnvByName) {
  Task bad = task("a");
  bad.env = "browser";
  EXPECT_EQ(rejection(bad), "unknown env 'browser', known: single_turn");
}

TEST_F(CollectorTest, RejectsAPinThatTheWorkerCannotGive) {
  options_.pin_refusal = "weights are swapped host_staged, wanted keep, recompute or abort";
  make();
  Task bad = task("a");
  bad.in_flight = InFlightPolicy::kPin;
  EXPECT_EQ(rejection(bad),
            "task 'a' wants in_flight = pin: weights are swapped host_staged, wanted keep, "
            "recompute or abort");
}

TEST_F(CollectorTest, RejectsAPromptThatLeavesNoRoomInTheContext) {
  Task bad = task("a");
  bad.prompt_ids.assign(16, 1);
  EXPECT_EQ(rejection(bad),
            "task 'a' has a prompt of 16 tokens, wanted at most 15 (the context holds 16, one of "
            "them sampled)");
}

TEST_F(CollectorTest, RejectsIdsOutOfRange) {
  Task bad = task("a");
  bad.prompt_ids = {1, 100};
  EXPECT_EQ(rejection(bad), "task 'a': prompt id [1] is 100, wanted 0..99");
}

TEST_F(CollectorTest, RejectsBadSamplingValues) {
  Task bad = task("a");
  bad.sampling.top_p = 1.5f;
  EXPECT_NE(rejection(bad).find("top_p"), std::string::npos);
  bad = task("b");
  bad.sampling.temperature = -1.0f;
  EXPECT_NE(rejection(bad).find("temperature"), std::string::npos);
  bad = task("c");
  bad.sampling.max_tokens = 0;
  EXPECT_NE(rejection(bad).find("max_tokens"), std::string::npos);
}

TEST_F(CollectorTest, RejectsTextWithoutATokenizerAndAGroupLargerThanItEverHolds) {
  Task bad = task("a");
  bad.prompt_ids.clear();
  bad.prompt_text = "hello";
  EXPECT_EQ(rejection(bad),
            "task 'a' has a prompt in text, this worker has no tokenizer; wanted prompt_ids");
  EXPECT_EQ(rejection(task("b", 9)), "task 'b' asks for 9 samples, this worker holds at most 8");
}

TEST_F(CollectorTest, RejectsWhatTheGeneratorRefusesWithTheGeneratorsReason) {
  generator_.refuse(invalid_argument("stop string is empty"));
  EXPECT_EQ(rejection(task("a")), "stop string is empty");
  EXPECT_TRUE(collector_->idle());
}

TEST_F(CollectorTest, RejectsOtherContentUnderAHeldId) {
  offer(task("a"));
  Task other = task("a");
  other.prompt_ids = {4};
  const TaskAck ack = offer(other);
  EXPECT_EQ(ack.answer, TaskAnswer::kRejected);
  EXPECT_EQ(ack.reason, "task 'a' is held with other content");
}

TEST_F(CollectorTest, IsBusyWhenItHoldsItsMostAndSaysHowMuchIsFree) {
  step();
  EXPECT_EQ(collector_->load().free_task_slots, 8u);
  offer(task("a", 6));
  EXPECT_EQ(collector_->load().free_task_slots, 2u);
  const TaskAck ack = offer(task("b", 3));
  EXPECT_EQ(ack.answer, TaskAnswer::kBusy);
  EXPECT_EQ(ack.reason, "6 samples are held, 3 more would exceed 8");
}

TEST_F(CollectorTest, IsBusyWhenTheIntakeQueueIsFullPausedOrDraining) {
  options_.intake_tasks = 1;
  make();
  collector_->offer({task("a"), 1});
  collector_->offer({task("b"), 2});
  const auto answers = collector_->take_answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].task_id, "b");
  EXPECT_EQ(answers[0].reason, "the intake queue holds 1 tasks, its most");
  step();
  (void)collector_->take_answers();
  collector_->set_paused(true);
  EXPECT_EQ(collector_->load().free_task_slots, 0u);
  EXPECT_EQ(offer(task("c")).reason, "the worker is paused");
  collector_->set_paused(false);
  collector_->drain();
  EXPECT_EQ(offer(task("d")).reason, "the worker is draining");
  EXPECT_EQ(collector_->open_task_ids(), (std::vector<std::string>{"a"}));
}

TEST_F(CollectorTest, KeepsFinishedSamplesAndTakesNoTasksWhileTheDiskIsFull) {
  offer(task("a", 6));
  free_bytes_ = 0;
  for (const SampleRequest& request : generator_.requests()) {
    generator_.end(ScriptedGenerator::good(request.request_id));
  }
  ASSERT_TRUE(step_until([&] { return log_->stats().intake == IntakeState::kPaused; }));
  ASSERT_TRUE(step_until([&] { return collector_->stats().unsealed_waiting > 0; }));
  const TaskAck ack = offer(task("b"));
  EXPECT_EQ(ack.answer, TaskAnswer::kBusy);
  EXPECT_NE(ack.reason.find("the sample log takes no samples"), std::string::npos) << ack.reason;
  EXPECT_EQ(collector_->load().free_task_slots, 0u);
  free_bytes_ = 1'000'000;
  ASSERT_TRUE(step_until([&] { return collector_->stats().samples_sealed == 6; }));
  EXPECT_EQ(log_->last_seq(), 6u);
  EXPECT_EQ(offer(task("b")).answer, TaskAnswer::kAccepted);
}

TEST_F(CollectorTest, LosesNothingWithOffersCancelsAndGenerationOnThreeThreads) {
  constexpr int kTasks = 60;
  generator_.set_room(4);
  std::atomic<bool> stop{false};
  std::thread driver([&] {
    while (!stop) (void)collector_->run_once(Clock::now() + std::chrono::milliseconds(1));
  });
  std::thread engine([&] {
    size_t next = 0;
    while (!stop) {
      const auto requests = generator_.requests();
      for (; next < requests.size(); ++next) {
        generator_.end(ScriptedGenerator::good(requests[next].request_id));
      }
      std::this_thread::yield();
    }
  });
  std::deque<Task> to_offer;
  for (int i = 0; i < kTasks; ++i) to_offer.push_back(task("t" + std::to_string(i), 2));
  const auto deadline = Clock::now() + std::chrono::seconds(100);
  size_t accepted = 0;
  while (accepted < kTasks && Clock::now() < deadline) {
    if (!to_offer.empty() && collector_->load().free_task_slots >= 2) {
      collector_->offer({to_offer.front(), 1});
      to_offer.pop_front();
    }
    for (const TaskAck& ack : collector_->take_answers()) {
      if (ack.answer == TaskAnswer::kAccepted) ++accepted;
      if (ack.answer == TaskAnswer::kBusy) to_offer.push_back(task(ack.task_id, 2));
    }
    std::this_thread::yield();
  }
  while (!collector_->idle() && Clock::now() < deadline) std::this_thread::yield();
  stop = true;
  driver.join();
  engine.join();
  EXPECT_EQ(accepted, static_cast<size_t>(kTasks));
  EXPECT_EQ(log_->last_seq(), 2u * kTasks);
  for (int i = 0; i < kTasks; ++i) {
    for (const int32_t sample_index : {0, 1}) {
      EXPECT_TRUE(*log_->is_sealed("t" + std::to_string(i), sample_index));
    }
  }
}

}  // namespace
}  // namespace warproll
