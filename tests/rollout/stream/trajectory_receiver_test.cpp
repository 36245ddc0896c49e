// TrajectoryReceiver: taking, acknowledging, watermarks, rollbacks, replays.
#include <gtest/gtest.h>

#include "tests/rollout/stream/trajectory_receiver_fixture.h"

namespace warproll {
namespace {

using namespace stream_testing;

TEST_F(TrajectoryReceiverTest, WelcomesAWorkerWithWatermarkCreditAndLimits) {
  const Welcome welcome = hello();
  EXPECT_EQ(welcome.commit_upto, 0u);
  EXPECT_EQ(welcome.credit_seq, 4u);
  EXPECT_EQ(welcome.credit_bytes, 8192u);
  EXPECT_EQ(welcome.limits.max_message_bytes, 4096u);
  EXPECT_EQ(welcome.trainer_epoch, 1u);
  EXPECT_EQ(welcome.lineage_id.size(), 32u);
}

TEST_F(TrajectoryReceiverTest, AcknowledgesNothingBeforeTheWrite) {
  hello();
  say(sample("a", 1), 1);
  EXPECT_TRUE(outgoing(*receiver_).empty());
  const auto acks = only<Ack>(flush());
  ASSERT_EQ(acks.size(), 1u);
  EXPECT_EQ(acks[0].commit_upto, 1u);
  EXPECT_EQ(acks[0].credit_seq, 5u);
}

TEST_F(TrajectoryReceiverTest, ForgetsWhatItDidNotWriteWhenItCrashesAndAsksForHelloAgain) {
  hello();
  say(sample("a", 1), 1);
  flush();
  say(sample("b", 2), 2);
  open();  // crash between receipt and write
  say(sample("c", 3), 3);
  EXPECT_EQ(only<NeedHello>(outgoing(*receiver_)).size(), 1u);
  EXPECT_EQ(hello().commit_upto, 1u);
  EXPECT_EQ(receiver_->store().num_taken(), 1u);
}

TEST_F(TrajectoryReceiverTest, TakesAResendOnceAndAcknowledgesItAgain) {
  hello();
  const Data data = sample("a", 1);
  say(data, 1);
  flush();
  open();  // crash between write and acknowledgement
  EXPECT_EQ(hello().commit_upto, 1u);
  say(data, 1);
  const auto acks = only<Ack>(flush());
  ASSERT_EQ(acks.size(), 1u);
  EXPECT_EQ(acks[0].commit_upto, 1u);
  EXPECT_EQ(receiver_->store().num_taken(), 1u);
  EXPECT_EQ(receiver_->stats().resent, 1u);
}

TEST_F(TrajectoryReceiverTest, TakesATaskAndSampleOnceWhicheverProducerItComesFrom) {
  hello(1, 1);
  hello(1, 2);
  say(sample("a", 1, 1, 1), 1, 1, 1);
  say(sample("a", 1, 1, 2), 1, 1, 2);  // in the same write
  const auto acks = only<Ack>(flush());
  ASSERT_EQ(acks.size(), 2u);
  EXPECT_EQ(acks[0].commit_upto, 1u);
  EXPECT_EQ(acks[1].commit_upto, 1u);
  say(sample("a", 2, 1, 2), 2, 1, 2);  // in a later one
  flush();
  EXPECT_EQ(receiver_->store().num_taken(), 1u);
  EXPECT_EQ(receiver_->stats().duplicate_pairs, 2u);
}

TEST_F(TrajectoryReceiverTest, SaysOnceWhereToGoBackWhenAMessageIsMissing) {
  hello();
  say(sample("b", 2), 2);
  say(sample("c", 3), 3);
  auto messages = flush();
  ASSERT_EQ(only<Nack>(messages).size(), 1u);
  EXPECT_EQ(only<Nack>(messages)[0].code, NackCode::kOutOfOrder);
  EXPECT_EQ(only<Ack>(messages)[0].recv_upto, 0u);
  EXPECT_EQ(receiver_->store().num_taken(), 0u);
  receiver_->tick(clock_.advance(150));
  say(sample("c", 3), 3);
  EXPECT_EQ(only<Nack>(flush()).size(), 1u) << "the first NACK may have been lost";
}

TEST_F(TrajectoryReceiverTest, MovesTheWatermarkOverAGap) {
  hello();
  say(Gap{1, 3, "removed by retention"});
  EXPECT_EQ(only<Ack>(flush())[0].commit_upto, 3u);
  say(sample("d", 4), 4);
  EXPECT_EQ(only<Ack>(flush())[0].commit_upto, 4u);
  say(sample("b", 2), 2);  // late, from before it was given up
  EXPECT_EQ(only<Ack>(flush())[0].commit_upto, 4u);
  EXPECT_EQ(receiver_->stats().late_after_gap, 1u);
  EXPECT_EQ(receiver_->stats().gap_seqs, 3u);
  EXPECT_EQ(receiver_->store().num_taken(), 1u);
}

TEST_F(TrajectoryReceiverTest, RestatesTheAckWithEveryHeartbeat) {
  hello();
  receiver_->tick(clock_.advance(150));
  const auto messages = outgoing(*receiver_);
  EXPECT_EQ(only<Heartbeat>(messages).size(), 1u);
  EXPECT_EQ(only<Heartbeat>(messages)[0].trainer_epoch, 1u);
  EXPECT_EQ(only<Ack>(messages).size(), 1u);
}

TEST_F(TrajectoryReceiverTest, RollsBackToAMarkUnderANewLineageAndTakesTheResends) {
  const Welcome before = hello();
  const Data first = sample("a", 1);
  const Data second = sample("b", 2);
  say(first, 1);
  flush();
  ASSERT_TRUE(receiver_->mark("step-1").ok());
  say(second, 2);
  flush();
  ASSERT_TRUE(receiver_->rollback("step-1").ok());
  const auto welcomes = only<Welcome>(flush());
  ASSERT_EQ(welcomes.size(), 1u) << "a connected worker is told";
  EXPECT_NE(welcomes[0].lineage_id, before.lineage_id);
  EXPECT_EQ(welcomes[0].commit_upto, 1u);
  EXPECT_EQ(receiver_->store().num_taken(), 1u);
  open();
  EXPECT_EQ(hello().lineage_id, welcomes[0].lineage_id);
  say(second, 2);
  flush();
  const auto taken = all_taken(receiver_->store());
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[1].key.task_id, "b");
  EXPECT_EQ(taken[1].record, second.record);
}

TEST_F(TrajectoryReceiverTest, StartsANewLineageWhenAWorkerKnowsOfAHigherCommitThanItsOwn) {
  const Welcome first = hello();
  Hello ahead;
  ahead.lineage_id = first.lineage_id;
  ahead.commit_upto = ahead.last_seq = 5;
  const Welcome second = hello(1, 1, ahead);
  EXPECT_NE(second.lineage_id, first.lineage_id);
  EXPECT_EQ(second.commit_upto, 0u);
  EXPECT_EQ(receiver_->stats().watermark_regressions, 1u);
}

TEST_F(TrajectoryReceiverTest, TakesAReplayByItsContentAndLeavesTheWorkersWatermarkAlone) {
  hello(1, 1);
  hello(1, 2);  // the replay's session
  Data replayed = sample("b", 2, 1, 1);
  replayed.replayed = true;
  say(replayed, 1, 1, 2);
  flush();
  EXPECT_EQ(receiver_->store().num_taken(), 1u);
  EXPECT_EQ(receiver_->store().producer(producer_id(1)).recv_upto, 0u);
  say(sample("a", 1), 1);
  Data original = replayed;
  original.replayed = false;
  say(original, 2);
  EXPECT_EQ(only<Ack>(flush())[0].commit_upto, 2u);
  EXPECT_EQ(receiver_->store().num_taken(), 2u);
}

TEST_F(TrajectoryReceiverTest, KeepsTensorsExactlyAsTheyCame) {
  hello();
  const Data data =
      data_of(identified(make_trajectory("a", 0, rng_, 10, true), producer_id(1), 1, 1));
  ASSERT_FALSE(data.tensors.empty());
  say(data, 1);
  flush();
  open();
  const auto taken = all_taken(receiver_->store());
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].record, data.record);
  EXPECT_EQ(taken[0].tensors, data.tensors);
}

}  // namespace
}  // namespace warproll
