// TrajectoryReceiver: what it refuses, fences and quarantines, and what that does to the watermark.
#include <gtest/gtest.h>

#include "tests/rollout/stream/trajectory_receiver_fixture.h"

namespace warproll {
namespace {

using namespace stream_testing;

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

TEST_F(TrajectoryReceiverTest, RefusesToRollBackToAMarkThatIsNotThere) {
  EXPECT_EQ(receiver_->rollback("nowhere").code(), StatusCode::kNotFound);
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
