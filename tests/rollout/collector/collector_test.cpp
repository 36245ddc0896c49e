// What becomes of samples.
#include <deque>
#include <limits>
#include <thread>

#include "tests/rollout/collector/collector_fixture.h"

namespace warproll {
namespace {

using namespace collector_testing;

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

TEST_F(CollectorTest, CancelsATaskThatIsStillInTheIntakeQueue) {
  collector_->offer({task("a", 2), 1});
  collector_->cancel({"a", "changed my mind"});
  collector_->cancel({"never offered", "nothing"});
  for (const uint64_t seq : {1, 2}) {
    const Trajectory trajectory = sealed(seq);
    EXPECT_EQ(trajectory.finish_reason, FinishReason::kAbort);
    EXPECT_EQ(trajectory.error_message, "changed my mind");
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

TEST_F(CollectorTest, KeepsFinishedSamplesAndTakesNoTasksWhileTheDiskIsFull) {
  offer(task("a", 6));
  free_bytes_ = 0;
  const auto requests = generator_.requests();
  generator_.end(ScriptedGenerator::good(requests.at(0).request_id));
  ASSERT_TRUE(step_until([&] { return log_->stats().intake == IntakeState::kPaused; }));
  // From here on the log's writer holds the first sample and its queue takes two more.
  for (size_t i = 1; i < requests.size(); ++i) {
    generator_.end(ScriptedGenerator::good(requests[i].request_id));
  }
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
