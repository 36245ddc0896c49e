// What a TASK is answered.
#include "tests/rollout/collector/collector_fixture.h"

namespace warproll {
namespace {

using namespace collector_testing;

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

TEST_F(CollectorTest, AGeneratorThatHasFailedEndsTheCollectorAndNoTask) {
  offer(task("a", 2));
  generator_.fail(failed_precondition("engine: the device fell off the bus"));
  collector_->offer({task("b"), 7});
  const Status ended = collector_->run_once(Clock::now() + std::chrono::milliseconds(5));
  EXPECT_EQ(ended.message(), "engine: the device fell off the bus");
  for (const TaskAck& ack : collector_->take_answers()) {
    EXPECT_NE(ack.answer, TaskAnswer::kRejected) << ack.reason;
  }
  EXPECT_EQ(log_->last_seq(), 0u);  // nothing was sealed: the trainer issues both again
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

}  // namespace
}  // namespace warproll
