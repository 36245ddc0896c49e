#include "rollout/stream/task_leases.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/rollout/stream/stream_fixture.h"

namespace warproll {
namespace {

using namespace stream_testing;

class TaskLeasesTest : public ::testing::Test {
 protected:
  TaskLeasesTest() { restart(1); }

  void restart(uint64_t trainer_epoch, uint32_t adopt_grace_ms = 0) {
    const TaskLeasesOptions options{
        .restate_ms = 100, .recheck_ms = 1000, .adopt_grace_ms = adopt_grace_ms, .max_lost = 2};
    leases_ = std::make_unique<TaskLeases>(options, trainer_epoch, clock_.now());
  }
  void add(const std::string& task_id, int32_t group_size = 1) {
    const Status added =
        leases_->add(make_task(task_id, group_size),
                     [this](const std::string& task, int32_t sample_index) -> Result<bool> {
                       return std::find(taken_.begin(), taken_.end(),
                                        TakenPair{task, sample_index}) != taken_.end();
                     });
    ASSERT_TRUE(added.ok()) << added.to_string();
  }
  void join(uint8_t worker, uint64_t epoch = 1, uint64_t last_seq = 0,
            std::vector<std::string> open_task_ids = {}) {
    SessionChange change;
    change.session.producer_id = producer_id(worker);
    change.session.epoch = epoch;
    change.session.hello.last_seq = last_seq;
    change.session.hello.open_task_ids = std::move(open_task_ids);
    leases_->on_session_change(change, clock_.now());
  }
  void lose(uint8_t worker, SessionChangeKind kind = SessionChangeKind::kGone) {
    SessionChange change;
    change.kind = kind;
    change.session.producer_id = producer_id(worker);
    change.session.epoch = 1;
    leases_->on_session_change(change, clock_.now());
  }
  void heartbeat(uint8_t worker, uint32_t free_slots, uint64_t last_seq = 0,
                 uint32_t running_samples = 1) {
    Heartbeat message;
    message.free_task_slots = free_slots;
    message.last_seq = last_seq;
    message.running_samples = running_samples;
    leases_->on_message(producer_id(worker), message, clock_.now());
  }
  void answer(uint8_t worker, const TaskMessage& task, TaskAnswer answer,
              const std::string& reason = {}) {
    leases_->on_message(producer_id(worker),
                        TaskAck{task.task.task_id, task.lease_id, answer, reason}, clock_.now());
  }
  void take(const std::string& task_id, int32_t sample_index) {
    taken_.push_back({task_id, sample_index});
    leases_->on_taken({{task_id, sample_index}});
  }
  struct Sent {
    uint8_t worker;
    TaskMessage message;
  };
  std::vector<Sent> tick(uint32_t ms = 0) {
    leases_->tick(clock_.advance(ms));
    std::vector<Sent> sent;
    while (auto message = leases_->next_outgoing()) {
      sent.push_back({message->producer_id[15], std::get<TaskMessage>(message->message)});
    }
    return sent;
  }

  TestClock clock_;
  std::unique_ptr<TaskLeases> leases_;
  std::vector<TakenPair> taken_;
};

TEST_F(TaskLeasesTest, IssuesNothingBeforeAHeartbeatSaysThereIsRoom) {
  add("a");
  join(1);
  EXPECT_TRUE(tick().empty());
  heartbeat(1, 0);
  EXPECT_TRUE(tick().empty());
  heartbeat(1, 1);
  const auto sent = tick();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].message.task.task_id, "a");
  EXPECT_EQ(sent[0].message.task.sample_indices, (std::vector<int32_t>{0}));
}

TEST_F(TaskLeasesTest, SpendsNoMoreThanTheFreeSlotsAndPrefersTheWorkerWithMoreRoom) {
  for (const char* task_id : {"a", "b", "c", "d"}) add(task_id, 2);
  join(1);
  join(2);
  heartbeat(1, 2);
  heartbeat(2, 5);
  const auto sent = tick();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[0].worker, 2);
  EXPECT_EQ(std::count_if(sent.begin(), sent.end(), [](auto& s) { return s.worker == 1; }), 1);
  heartbeat(2, 5);  // it has not seen the two tasks yet: 4 of its 5 slots are promised
  EXPECT_TRUE(tick().empty());
}

TEST_F(TaskLeasesTest, GivesAGroupLargerThanAnyRoomToAnIdleWorker) {
  add("big", 50);
  join(1);
  heartbeat(1, 8);
  EXPECT_EQ(tick().size(), 1u);
}

TEST_F(TaskLeasesTest, RestatesATaskUntilItIsAnsweredWithTheSameLease) {
  add("a");
  join(1);
  heartbeat(1, 4);
  const auto first = tick();
  ASSERT_EQ(first.size(), 1u);
  const auto again = tick(150);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].message.lease_id, first[0].message.lease_id);
  answer(1, again[0].message, TaskAnswer::kAccepted);
  EXPECT_TRUE(tick(150).empty());
}

TEST_F(TaskLeasesTest, ReissuesOnlyTheMissingSamplesWhenAWorkerIsGone) {
  add("a", 3);
  join(1);
  heartbeat(1, 4);
  const auto first = tick();
  answer(1, first.at(0).message, TaskAnswer::kAccepted);
  take("a", 1);
  lose(1);
  join(2);
  heartbeat(2, 4);
  const auto second = tick();
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].worker, 2);
  EXPECT_EQ(second[0].message.task.sample_indices, (std::vector<int32_t>{0, 2}));
  EXPECT_GT(second[0].message.lease_id, first[0].message.lease_id);
}

TEST_F(TaskLeasesTest, ReissuesWhatAWorkerGivesBackWhenItLeaves) {
  add("a");
  join(1);
  heartbeat(1, 4);
  answer(1, tick().at(0).message, TaskAnswer::kAccepted);
  lose(1, SessionChangeKind::kLeft);
  join(2);
  heartbeat(2, 4);
  EXPECT_EQ(tick().size(), 1u);
}

TEST_F(TaskLeasesTest, WaitsForTheOutboxOfARestartedWorkerBeforeReissuing) {
  add("a", 2);
  join(1);
  heartbeat(1, 4);
  answer(1, tick().at(0).message, TaskAnswer::kAccepted);
  join(1, 2, 7);  // restarted; its log ends with seq 7
  join(2);
  heartbeat(1, 4);
  heartbeat(2, 4);
  leases_->on_watermark(producer_id(1), 6);
  EXPECT_TRUE(tick(5000).empty());
  take("a", 0);  // it was in the outbox
  leases_->on_watermark(producer_id(1), 7);
  const auto sent = tick();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].message.task.sample_indices, (std::vector<int32_t>{1}));
}

TEST_F(TaskLeasesTest, KeepsTheLeaseOfAWorkerThatReconnectsAndStillHoldsTheTask) {
  add("a");
  join(1);
  heartbeat(1, 4);
  answer(1, tick().at(0).message, TaskAnswer::kAccepted);
  join(1, 1, 0, {"a"});
  heartbeat(1, 4);
  EXPECT_TRUE(tick(150).empty());
}

TEST_F(TaskLeasesTest, FailsARejectedTaskWithTheWorkersReason) {
  add("a");
  join(1);
  heartbeat(1, 4);
  answer(1, tick().at(0).message, TaskAnswer::kRejected, "prompt of 9 tokens, wanted 8");
  const auto failures = leases_->take_failures();
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].task_id, "a");
  EXPECT_EQ(failures[0].reason, "prompt of 9 tokens, wanted 8");
  EXPECT_EQ(leases_->num_unfinished(), 0u);
  EXPECT_EQ(leases_->stats().failed_tasks, 1u);
}

TEST_F(TaskLeasesTest, TriesElsewhereWhenAWorkerIsBusy) {
  add("a");
  join(1);
  join(2);
  heartbeat(1, 4);
  heartbeat(2, 3);
  const auto first = tick();
  ASSERT_EQ(first.at(0).worker, 1);
  answer(1, first[0].message, TaskAnswer::kBusy, "queue full");
  const auto second = tick();
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].worker, 2);
}

TEST_F(TaskLeasesTest, IgnoresTheAnswerToAnOldLease) {
  add("a");
  join(1);
  heartbeat(1, 4);
  const auto first = tick();
  lose(1);
  join(2);
  heartbeat(2, 4);
  ASSERT_EQ(tick().size(), 1u);
  answer(1, first.at(0).message, TaskAnswer::kRejected, "late");
  EXPECT_TRUE(leases_->take_failures().empty());
  EXPECT_EQ(leases_->stats().stale_answers, 1u);
}

TEST_F(TaskLeasesTest, FailsATaskThatIsSealedAndNeverDelivered) {
  add("a");
  join(1);
  heartbeat(1, 4);
  for (int times = 0; times < 2; ++times) {
    const auto sent = tick();
    ASSERT_EQ(sent.size(), 1u) << times;
    answer(1, sent[0].message, TaskAnswer::kAlreadySealed);
    heartbeat(1, 4, 9);
    EXPECT_TRUE(tick(150).empty()) << "seq 9 has not come through";
    leases_->on_watermark(producer_id(1), 9);
  }
  const auto failures = leases_->take_failures();
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_NE(failures[0].reason.find("never delivered"), std::string::npos);
}

TEST_F(TaskLeasesTest, AsksAfterALeaseOfAWorkerThatSaysItIsIdle) {
  add("a");
  join(1);
  heartbeat(1, 4);
  answer(1, tick().at(0).message, TaskAnswer::kAccepted);
  clock_.advance(150);
  heartbeat(1, 4, 0, 0);
  EXPECT_EQ(tick().size(), 1u);
}

TEST_F(TaskLeasesTest, FinishesATaskWhenItsLastSampleIsTaken) {
  add("a", 2);
  take("a", 1);
  EXPECT_TRUE(leases_->take_finished().empty());
  take("a", 0);
  EXPECT_EQ(leases_->take_finished(), (std::vector<std::string>{"a"}));
  add("a", 2);  // added again after a restart of the source
  EXPECT_EQ(leases_->take_finished(), (std::vector<std::string>{"a"}));
  EXPECT_EQ(leases_->num_unfinished(), 0u);
}

TEST_F(TaskLeasesTest, RefusesAnotherTaskUnderTheSameId) {
  add("a", 2);
  EXPECT_EQ(leases_->add(make_task("a", 3), [](auto&, int32_t) { return false; }).code(),
            StatusCode::kAlreadyExists);
}

TEST_F(TaskLeasesTest, AfterATrainerRestartAdoptsWhatWorkersHoldAndWaitsForWhatTheySealed) {
  restart(2, 1000);
  add("held");
  add("sealed");
  add("new");
  join(1, 1, 4, {"held"});
  heartbeat(1, 4, 4);
  const auto adopted = tick();
  ASSERT_EQ(adopted.size(), 1u);
  EXPECT_EQ(adopted[0].message.task.task_id, "held");
  EXPECT_GT(adopted[0].message.lease_id, uint64_t{2} << 32);
  answer(1, adopted[0].message, TaskAnswer::kAlreadyHeld);
  for (const Sent& asked : tick(1500)) {
    EXPECT_EQ(asked.message.task.task_id, "held") << "seq 4 is still to come";
  }
  take("sealed", 0);
  leases_->on_watermark(producer_id(1), 4);
  const auto sent = tick();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].message.task.task_id, "new");
}

}  // namespace
}  // namespace warproll
