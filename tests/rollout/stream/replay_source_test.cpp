#include "rollout/stream/replay_source.h"

#include <gtest/gtest.h>

#include "rollout/sample_log/log_reader.h"
#include "tests/rollout/stream/stream_fixture.h"

namespace warproll {
namespace {

using namespace stream_testing;

class ReplaySourceTest : public ::testing::Test {
 protected:
  ReplaySourceTest() : log_(open_log(folder_.path("log"))) {
    options_ = trainer_options(folder_.path("trainer"));
    options_.receiver.credit_messages = 3;
    options_.receiver.limits = {
        .max_message_bytes = 20'000, .heartbeat_ms = 100, .liveness_ms = 1000};
    trainer_ = open_trainer(options_, clock_.now());
    for (int i = 0; i < 10; ++i) {
      seal(*log_, make_trajectory("t" + std::to_string(i), 0, rng_, 10, i % 2 == 0));
    }
  }
  ReplaySource source(ReplayOptions options = {}, SampleQuery query = {}) {
    auto cursor = std::make_shared<SampleCursor>(log_->reader()->query(std::move(query)));
    return {[cursor] { return cursor->next(); }, options, test_sources()};
  }
  // Runs the replay to its end; the number of DATA sent.
  size_t run(ReplaySource& replay, int rounds = 200) {
    size_t sent = 0;
    for (int i = 0; i < rounds && !replay.done(); ++i) {
      replay.tick(clock_.advance(10));
      while (true) {
        auto message = replay.next_outgoing(clock_.now());
        EXPECT_TRUE(message.ok()) << message.status().to_string();
        if (!message.ok() || !message->has_value()) break;
        if (std::holds_alternative<Data>((*message)->message)) ++sent;
        EXPECT_TRUE(
            trainer_
                ->on_message({"replay", (*message)->envelope, (*message)->message}, clock_.now())
                .ok());
      }
      EXPECT_TRUE(trainer_->advance(clock_.now()).ok());
      for (const PeerMessage& answer : outgoing(*trainer_)) {
        EXPECT_TRUE(replay.on_message(answer.message, clock_.now()).ok());
      }
    }
    return sent;
  }
  std::vector<TakenTrajectory> taken() { return all_taken(trainer_->receiver().store()); }

  TempFolder folder_;
  TestClock clock_;
  std::mt19937_64 rng_{11};
  std::unique_ptr<SampleLog> log_;
  TrainerStreamOptions options_;
  std::unique_ptr<TrainerStream> trainer_;
};

TEST_F(ReplaySourceTest, DeliversTheStoredBytes) {
  ReplaySource replay = source();
  EXPECT_EQ(run(replay), 10u);
  EXPECT_TRUE(replay.done());
  EXPECT_EQ(replay.stats().committed, 10u);
  const auto items = taken();
  ASSERT_EQ(items.size(), 10u);
  for (const TakenTrajectory& item : items) {
    const auto stored = log_->read(item.key.seq);
    EXPECT_EQ(item.record, stored->record);
    EXPECT_EQ(item.tensors, stored->tensors);
    EXPECT_EQ(item.key.producer_id, log_->producer_id());
  }
}

TEST_F(ReplaySourceTest, DeliversNothingTwiceWhenDeduped) {
  ReplaySource first = source();
  run(first);
  ReplaySource second = source();
  EXPECT_EQ(run(second), 10u);
  EXPECT_TRUE(second.done());
  EXPECT_EQ(taken().size(), 10u);
  EXPECT_EQ(trainer_->receiver().stats().resent, 10u);
}

TEST_F(ReplaySourceTest, DeliversOtherSamplesWhenSentAsNew) {
  ReplaySource first = source();
  run(first);
  ReplayOptions as_new;
  as_new.mode = ReplayMode::kAsNew;
  ReplaySource second = source(as_new);
  run(second);
  const auto items = taken();
  ASSERT_EQ(items.size(), 20u);
  const std::string prefix = "replay-" + to_hex(second.producer_id()).substr(0, 8) + "/";
  EXPECT_EQ(items[10].key.task_id, prefix + "t0");
  const auto before = decode_trajectory(items[0].record, items[0].tensors);
  const auto after = decode_trajectory(items[10].record, items[10].tensors);
  EXPECT_EQ(after->token_ids, before->token_ids);
  EXPECT_EQ(after->logprobs, before->logprobs);
  EXPECT_EQ(after->routed_experts, before->routed_experts);
}

TEST_F(ReplaySourceTest, SendsWhatTheQuerySelects) {
  SampleQuery some;
  some.from_seq = 3;
  some.to_seq = 5;
  ReplaySource replay = source({}, some);
  EXPECT_EQ(run(replay), 3u);
  EXPECT_EQ(taken().front().key.seq, 3u);
}

TEST_F(ReplaySourceTest, KeepsToTheRate) {
  ReplayOptions slow;
  slow.samples_per_s = 20.0;
  ReplaySource replay = source(slow);
  const SteadyTime begun = clock_.now();
  EXPECT_EQ(run(replay, 1000), 10u);
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(clock_.now() - begun);
  EXPECT_GE(took.count(), 400);
  EXPECT_LE(took.count(), 700);
}

TEST_F(ReplaySourceTest, GoesOnBehindASampleThatTheTrainerRefuses) {
  seal(*log_, make_trajectory("huge", 0, rng_, 30'000));
  seal(*log_, make_trajectory("last", 0, rng_));
  ReplaySource replay = source();
  run(replay);
  EXPECT_TRUE(replay.done());
  ASSERT_EQ(replay.refusals().size(), 1u);
  EXPECT_EQ(replay.refusals()[0].source_seq, 11u);
  EXPECT_EQ(replay.refusals()[0].code, NackCode::kTooLarge);
  EXPECT_EQ(taken().back().key.task_id, "last");
}

TEST_F(ReplaySourceTest, GoesOnAfterTheTrainerRestarts) {
  ReplaySource replay = source();
  run(replay, 4);
  trainer_.reset();
  trainer_ = open_trainer(options_, clock_.now());
  run(replay);
  EXPECT_TRUE(replay.done());
  EXPECT_EQ(taken().size(), 10u);
}

}  // namespace
}  // namespace warproll
