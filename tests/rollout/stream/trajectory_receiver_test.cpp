#include "rollout/stream/trajectory_receiver.h"

#include <gtest/gtest.h>

#include "tests/rollout/stream/stream_fixture.h"

namespace warproll {
namespace {

using namespace stream_testing;

class TrajectoryReceiverTest : public ::testing::Test {
 protected:
  TrajectoryReceiverTest() { open(); }

  void open() {
    receiver_.reset();
    auto opened = TrajectoryReceiver::open(options());
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    receiver_ = *std::move(opened);
  }
  [[nodiscard]] TrajectoryReceiverOptions options() const {
    TrajectoryReceiverOptions options = trainer_options(folder_.path("trainer")).receiver;
    options.credit_messages = 4;
    options.limits = {.max_message_bytes = 4096, .heartbeat_ms = 100, .liveness_ms = 1000};
    options.credit_bytes = 8192;
    return options;
  }
  void say(Message message, uint64_t seq = 0, uint64_t epoch = 1, uint8_t producer = 1,
           const std::string& peer = "peer") {
    auto verdict = receiver_->on_message(
        {peer, {producer_id(producer), epoch, seq}, std::move(message)}, clock_.now());
    ASSERT_TRUE(verdict.ok()) << verdict.status().to_string();
  }
  std::vector<PeerMessage> flush() {
    auto flushed = receiver_->flush();
    EXPECT_TRUE(flushed.ok()) << flushed.status().to_string();
    return outgoing(*receiver_);
  }
  Welcome hello(uint64_t epoch = 1, uint8_t producer = 1, Hello message = {}) {
    say(std::move(message), 0, epoch, producer);
    const auto welcomes = only<Welcome>(flush());
    EXPECT_EQ(welcomes.size(), 1u);
    return welcomes.empty() ? Welcome{} : welcomes.front();
  }
  Data sample(const std::string& task_id, uint64_t seq, uint64_t epoch = 1, uint8_t producer = 1) {
    return data_of(
        identified(make_trajectory(task_id, 0, rng_), producer_id(producer), epoch, seq));
  }

  TempFolder folder_;
  TestClock clock_;
  std::mt19937_64 rng_{7};
  std::unique_ptr<TrajectoryReceiver> receiver_;
};

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

TEST_F(TrajectoryReceiverTest, QuarantinesOtherContentUnderAKnownSeq) {
  hello();
  say(sample("a", 1), 1);
  flush();
  say(sample("other", 1), 1);
  const auto nacks = only<Nack>(flush());
  ASSERT_EQ(nacks.size(), 1u);
  EXPECT_EQ(nacks[0].code, NackCode::kConflict);
  EXPECT_EQ(nacks[0].seq, 1u);
  EXPECT_NE(nacks[0].reason.find("other content"), std::string::npos) << nacks[0].reason;
  EXPECT_EQ(receiver_->store().num_quarantined(), 1u);
  EXPECT_EQ(receiver_->store().num_taken(), 1u);
}

TEST_F(TrajectoryReceiverTest, FencesALowerEpochAndServesTheHigherOne) {
  hello(2);
  say(Hello{}, 0, 1, 1, "old process");
  auto messages = outgoing(*receiver_);
  ASSERT_EQ(only<Fenced>(messages).size(), 1u);
  EXPECT_EQ(only<Fenced>(messages)[0].epoch, 2u);
  EXPECT_EQ(messages[0].peer, "old process");
  say(sample("a", 1), 1, 1, 1, "old process");
  EXPECT_EQ(only<Fenced>(outgoing(*receiver_)).size(), 1u);
  say(sample("a", 1, 2), 1, 2);
  EXPECT_EQ(only<Ack>(flush())[0].commit_upto, 1u);
}

TEST_F(TrajectoryReceiverTest, StillFencesTheLowerEpochAfterItsOwnRestart) {
  hello(2);
  open();
  say(Hello{}, 0, 1);
  EXPECT_EQ(only<Fenced>(outgoing(*receiver_)).size(), 1u);
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

TEST_F(TrajectoryReceiverTest, RefusesAGapThatEndsBeforeItBegins) {
  hello();
  say(Gap{3, 2, "x"});
  say(Gap{1, UINT64_MAX, "x"});
  EXPECT_TRUE(only<Ack>(flush()).empty());
  EXPECT_EQ(receiver_->stats().malformed, 2u);
}

TEST_F(TrajectoryReceiverTest, HoldsTheWatermarkAtARefusedSampleUntilItsGapComes) {
  hello();
  Trajectory bad = make_trajectory("a", 0, rng_);
  bad.loss_mask[0] = 1;  // in the prompt
  bad.logprobs[0] = -1.0f;
  say(data_of(identified(bad, producer_id(1), 1, 1)), 1);
  auto messages = flush();
  ASSERT_EQ(only<Nack>(messages).size(), 1u);
  EXPECT_EQ(only<Nack>(messages)[0].code, NackCode::kInvalid);
  EXPECT_NE(only<Nack>(messages)[0].reason.find("loss_mask"), std::string::npos);
  EXPECT_EQ(receiver_->store().producer(producer_id(1)).recv_upto, 0u);
  EXPECT_EQ(receiver_->store().num_quarantined(), 1u);
  say(Gap{1, 1, "dead letter"});
  EXPECT_EQ(only<Ack>(flush())[0].commit_upto, 1u);
}

TEST_F(TrajectoryReceiverTest, RefusesARecordOfAnotherSeqProducerOrLaterEpoch) {
  hello();
  const auto reason_of = [&](const Data& data) {
    say(data, 1);
    const auto nacks = only<Nack>(flush());
    EXPECT_EQ(nacks.size(), 1u);
    return nacks.empty() ? std::string() : nacks[0].reason;
  };
  EXPECT_NE(reason_of(sample("a", 2)).find("record has seq 2, its frame 1"), std::string::npos);
  EXPECT_NE(reason_of(sample("a", 1, 1, 9)).find("its frame of"), std::string::npos);
  EXPECT_NE(reason_of(sample("a", 1, 7)).find("sealed in epoch 7"), std::string::npos);
  EXPECT_EQ(receiver_->store().num_taken(), 0u);
}

TEST_F(TrajectoryReceiverTest, RefusesBytesThatAreNoRecord) {
  hello();
  Data data = sample("a", 1);
  data.record.resize(data.record.size() / 2);
  say(data, 1);
  EXPECT_EQ(only<Nack>(flush())[0].code, NackCode::kMalformed);
}

TEST_F(TrajectoryReceiverTest, RefusesTokenIdsBeyondTheVocabularyOfTheHello) {
  Hello small;
  small.vocab_size = 2;
  hello(1, 1, small);
  say(sample("a", 1), 1);
  const auto nacks = only<Nack>(flush());
  ASSERT_EQ(nacks.size(), 1u);
  EXPECT_EQ(nacks[0].code, NackCode::kInvalid);
}

TEST_F(TrajectoryReceiverTest, RefusesASampleOverTheLimit) {
  hello();
  say(data_of(identified(make_trajectory("a", 0, rng_, 5000), producer_id(1), 1, 1)), 1);
  const auto nacks = only<Nack>(flush());
  ASSERT_EQ(nacks.size(), 1u);
  EXPECT_EQ(nacks[0].code, NackCode::kTooLarge);
  EXPECT_NE(nacks[0].reason.find("wanted at most 4096"), std::string::npos) << nacks[0].reason;
}

TEST_F(TrajectoryReceiverTest, DropsAWorkerThatIsSilentAndSaysSo) {
  hello();
  (void)receiver_->take_session_changes();
  receiver_->tick(clock_.advance(900));
  EXPECT_EQ(receiver_->sessions().size(), 1u);
  receiver_->tick(clock_.advance(200));
  EXPECT_TRUE(receiver_->sessions().empty());
  const auto changes = receiver_->take_session_changes();
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].kind, SessionChangeKind::kGone);
  EXPECT_EQ(changes[0].reason, "silent for 1100 ms");
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

TEST_F(TrajectoryReceiverTest, RefusesToRollBackToAMarkThatIsNotThere) {
  EXPECT_EQ(receiver_->rollback("nowhere").code(), StatusCode::kNotFound);
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

TEST_F(TrajectoryReceiverTest, RefusesOptionsThatBreakTheCreditRule) {
  TrajectoryReceiverOptions wrong = options();
  wrong.store.directory = folder_.path("other");
  wrong.receive_hwm_messages = 8;
  EXPECT_NE(TrajectoryReceiver::open(wrong).status().message().find("below half"),
            std::string::npos);
  wrong = options();
  wrong.credit_bytes = 100;
  EXPECT_NE(TrajectoryReceiver::open(wrong).status().message().find("credit_bytes is 100"),
            std::string::npos);
}

TEST_F(TrajectoryReceiverTest, RefusesADirectoryThatIsInUse) {
  const auto second = TrajectoryReceiver::open(options());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace warproll
