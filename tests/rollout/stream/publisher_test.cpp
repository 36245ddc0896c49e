#include "rollout/stream/publisher.h"

#include <gtest/gtest.h>

#include "tests/rollout/stream/stream_fixture.h"

namespace warproll {
namespace {

using namespace stream_testing;

class PublisherTest : public ::testing::Test {
 protected:
  PublisherTest() : log_(open_log(folder_.path("log"))) { start(); }

  void start() {
    PublisherOptions options;
    options.session.until_welcome.liveness_ms = 1000;
    options.session.reconnect_min_ms = 100;
    options.session.reconnect_max_ms = 400;
    options.resend_ms = 500;
    options.retry_ms = 50;
    publisher_ = std::make_unique<Publisher>(*log_, options, test_sources());
  }
  void seal_some(int count, size_t metadata_bytes = 10) {
    for (int i = 0; i < count; ++i) {
      seal(*log_,
           make_trajectory("task-" + std::to_string(num_sealed_++), 0, rng_, metadata_bytes));
    }
  }
  std::vector<WorkerMessage> tick(uint32_t ms = 0) {
    const Status ticked = publisher_->tick(clock_.advance(ms));
    EXPECT_TRUE(ticked.ok()) << ticked.to_string();
    return outgoing(*publisher_, clock_.now());
  }
  std::vector<WorkerMessage> say(const Message& message) {
    const auto handled = publisher_->on_message(message, clock_.now());
    EXPECT_TRUE(handled.ok()) << handled.status().to_string();
    return outgoing(*publisher_, clock_.now());
  }
  std::vector<WorkerMessage> welcome(uint64_t commit_upto = 0, uint64_t credit_seq = 100,
                                     uint64_t credit_bytes = 1 << 20,
                                     const std::string& lineage_id = "lineage-1") {
    return say(Welcome{lineage_id, 1, commit_upto, credit_seq, credit_bytes, {20'000, 100, 1000}});
  }
  std::vector<WorkerMessage> ack(uint64_t recv_upto, uint64_t commit_upto,
                                 uint64_t credit_seq = 100, uint64_t credit_bytes = 1 << 20) {
    return say(Ack{"lineage-1", recv_upto, commit_upto, credit_seq, credit_bytes});
  }
  static std::vector<uint64_t> seqs(const std::vector<WorkerMessage>& messages) {
    std::vector<uint64_t> found;
    for (const auto& message : messages) {
      if (std::holds_alternative<Data>(message.message)) found.push_back(message.envelope.seq);
    }
    return found;
  }
  using Seqs = std::vector<uint64_t>;

  TempFolder folder_;
  TestClock clock_;
  std::mt19937_64 rng_{3};
  std::unique_ptr<SampleLog> log_;
  std::unique_ptr<Publisher> publisher_;
  int num_sealed_ = 0;
};

TEST_F(PublisherTest, SaysHelloWithWhatTheLogHoldsAndSendsNothingBeforeWelcome) {
  seal_some(3);
  const auto messages = tick();
  ASSERT_EQ(messages.size(), 1u);
  const auto& hello = std::get<Hello>(messages[0].message);
  EXPECT_EQ(hello.last_seq, 3u);
  EXPECT_EQ(hello.commit_upto, 0u);
  EXPECT_EQ(hello.lineage_id, "");
  EXPECT_EQ(messages[0].envelope.producer_id, log_->producer_id());
  EXPECT_EQ(messages[0].envelope.epoch, 1u);
  EXPECT_EQ(seqs(welcome()), (Seqs{1, 2, 3}));
}

TEST_F(PublisherTest, SendsTheBytesOfTheLog) {
  seal_some(1);
  tick();
  const auto data = only<Data>(welcome());
  ASSERT_EQ(data.size(), 1u);
  EXPECT_EQ(data[0].record, log_->read(1)->record);
  EXPECT_FALSE(data[0].replayed);
}

TEST_F(PublisherTest, StaysWithinTheCreditInMessagesAndInBytes) {
  seal_some(10);
  tick();
  EXPECT_EQ(seqs(welcome(0, 3)), (Seqs{1, 2, 3}));
  EXPECT_EQ(seqs(ack(3, 3, 5)), (Seqs{4, 5}));
  const uint64_t one = log_->read_outbox(6, 1)->at(0).bytes;
  EXPECT_EQ(seqs(ack(5, 5, 100, one + 1)), (Seqs{6}));
  EXPECT_EQ(seqs(ack(6, 5, 100, one + 1)), (Seqs{})) << "received is not committed";
  EXPECT_EQ(seqs(ack(6, 6, 100, 0)), (Seqs{})) << "no credit at all";
  EXPECT_EQ(seqs(ack(6, 6, 100, 1)), (Seqs{7})) << "one goes whatever its size";
}

TEST_F(PublisherTest, PrunesTheOutboxOnlyByCommitAcks) {
  seal_some(3);
  tick();
  welcome();
  ack(3, 1);
  EXPECT_EQ(log_->commit_upto(), 1u);
  EXPECT_EQ(log_->read_outbox(1, 10)->size(), 2u);
  EXPECT_FALSE(publisher_->drained());
  ack(3, 3);
  EXPECT_TRUE(publisher_->drained());
}

TEST_F(PublisherTest, ResendsFromTheFirstUncommittedAfterAReconnectAndAfterARestart) {
  seal_some(4);
  tick();
  welcome();
  ack(4, 2);
  publisher_->on_reconnected(clock_.now());
  EXPECT_EQ(only<Hello>(tick()).size(), 1u);
  EXPECT_EQ(seqs(welcome(2)), (Seqs{3, 4}));
  publisher_.reset();
  log_.reset();
  log_ = open_log(folder_.path("log"));
  start();
  const auto hello = only<Hello>(tick());
  ASSERT_EQ(hello.size(), 1u);
  EXPECT_EQ(hello[0].lineage_id, "lineage-1");
  EXPECT_EQ(hello[0].commit_upto, 2u);
  EXPECT_EQ(seqs(welcome(2)), (Seqs{3, 4}));
}

TEST_F(PublisherTest, GoesBackWhenTheTrainerSaysThatOneIsMissingOrNothingMovesForLong) {
  seal_some(4);
  tick();
  welcome();
  ack(1, 1);
  EXPECT_EQ(seqs(say(Nack{3, NackCode::kOutOfOrder, "x"})), (Seqs{2, 3, 4}));
  EXPECT_EQ(seqs(tick(400)), (Seqs{}));
  say(Heartbeat{});
  EXPECT_EQ(seqs(tick(200)), (Seqs{2, 3, 4}));
}

TEST_F(PublisherTest, WaitsBeforeItRetriesWhatTheTrainerCannotTakeNow) {
  seal_some(1);
  tick();
  welcome();
  EXPECT_EQ(seqs(say(Nack{1, NackCode::kRetry, "disk full"})), (Seqs{}));
  EXPECT_EQ(seqs(tick(60)), (Seqs{1}));
}

TEST_F(PublisherTest, MakesADeadLetterOfWhatIsRefusedForGoodAndSendsAGapInItsPlace) {
  seal_some(3);
  tick();
  welcome();
  const auto messages = say(Nack{2, NackCode::kInvalid, "Trajectory.logprobs[3] is nan"});
  ASSERT_EQ(only<Gap>(messages).size(), 1u);
  EXPECT_EQ(only<Gap>(messages)[0].from, 2u);
  EXPECT_EQ(only<Gap>(messages)[0].to, 2u);
  EXPECT_EQ(seqs(messages), (Seqs{3}));
  ack(3, 3);
  const auto accounting = log_->accounting();
  EXPECT_EQ(accounting->dead_letters, 1u);
  EXPECT_EQ(accounting->committed, 2u);
  EXPECT_TRUE(accounting->holds()) << accounting->to_string();
}

TEST_F(PublisherTest, MakesADeadLetterOfASampleOverTheTrainersLimitAndGoesOn) {
  seal_some(1);
  seal_some(1, 30'000);
  seal_some(1);
  tick();
  const auto messages = welcome();
  EXPECT_EQ(seqs(messages), (Seqs{1, 3}));
  ASSERT_EQ(only<Gap>(messages).size(), 1u);
  EXPECT_NE(only<Gap>(messages)[0].reason.find("takes at most 20000"), std::string::npos)
      << only<Gap>(messages)[0].reason;
  ack(3, 3);
  EXPECT_TRUE(publisher_->drained());
}

TEST_F(PublisherTest, MakesADeadLetterOfWhatTheSocketFindsTooLarge) {
  seal_some(1);
  tick();
  auto messages = welcome();
  ASSERT_EQ(messages.size(), 1u);
  ASSERT_TRUE(publisher_->send_failed(std::move(messages[0]), invalid_argument("too big")).ok());
  EXPECT_EQ(only<Gap>(tick()).size(), 1u);
  EXPECT_EQ(log_->accounting()->dead_letters, 1u);
}

TEST_F(PublisherTest, SendsAgainWhatTheSocketHadNoRoomFor) {
  seal_some(2);
  auto hello = tick();
  ASSERT_EQ(hello.size(), 1u);
  ASSERT_TRUE(publisher_->send_failed(std::move(hello[0]), unavailable("full")).ok());
  EXPECT_EQ(only<Hello>(tick()).size(), 1u);
  auto messages = welcome();
  ASSERT_EQ(seqs(messages), (Seqs{1, 2}));
  ASSERT_TRUE(publisher_->send_failed(std::move(messages[0]), unavailable("full")).ok());
  EXPECT_EQ(seqs(tick()), (Seqs{1, 2}));
}

TEST_F(PublisherTest, RewindsForANewLineageAndResendsWhatWasPruned) {
  seal_some(3);
  tick();
  welcome();
  ack(3, 3);
  EXPECT_TRUE(publisher_->drained());
  EXPECT_EQ(seqs(welcome(1, 100, 1 << 20, "lineage-2")), (Seqs{2, 3}));
  EXPECT_EQ(log_->lineage_id(), "lineage-2");
  EXPECT_EQ(log_->commit_upto(), 1u);
  EXPECT_EQ(publisher_->stats().rewinds, 1u);
}

TEST_F(PublisherTest, SendsAGapForWhatRetentionRemovedBeforeTheRollback) {
  publisher_.reset();
  log_.reset();
  SampleLogOptions options;
  options.directory = folder_.path("log");
  options.durability = Durability::kOs;
  options.min_free_bytes = 0;
  options.retention.keep_samples = 1;
  log_ = *SampleLog::open(options);
  start();
  seal_some(4);
  tick();
  welcome();
  ack(3, 3);
  ASSERT_TRUE(log_->apply_retention().ok());
  const uint64_t retained_from = log_->info().retained_from;
  ASSERT_GT(retained_from, 1u);
  const auto messages = welcome(0, 100, 1 << 20, "lineage-2");
  ASSERT_EQ(only<Gap>(messages).size(), 1u);
  EXPECT_EQ(only<Gap>(messages)[0].from, 1u);
  EXPECT_EQ(only<Gap>(messages)[0].to, retained_from - 1);
  EXPECT_EQ(seqs(messages).front(), retained_from);
}

TEST_F(PublisherTest, SaysHelloAgainWhenTheTrainerDoesNotKnowItOrAcksAnotherLineage) {
  tick();
  welcome();
  say(NeedHello{"who?"});
  EXPECT_EQ(only<Hello>(tick(1100)).size(), 1u);
  welcome();
  say(Ack{"lineage-2", 0, 0, 10, 1000});
  EXPECT_EQ(only<Hello>(tick(1100)).size(), 1u);
}

TEST_F(PublisherTest, StopsForGoodWhenFenced) {
  tick();
  welcome();
  say(Fenced{2});
  EXPECT_EQ(publisher_->stopped_because().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(publisher_->stopped_because().message().find("epoch 2"), std::string::npos);
  seal_some(1);
  EXPECT_TRUE(tick(2000).empty());
  EXPECT_FALSE(publisher_->reconnect_due(clock_.now()));
}

TEST_F(PublisherTest, StopsWhenTheTrainerHoldsMoreThanThisLogEverSealed) {
  seal_some(1);
  tick();
  welcome(5);
  EXPECT_EQ(publisher_->stopped_because().code(), StatusCode::kDataLoss);
  EXPECT_NE(publisher_->stopped_because().message().find("older copy"), std::string::npos);
}

TEST_F(PublisherTest, IgnoresAWelcomeThatLowersTheWatermarkWithinALineage) {
  seal_some(2);
  tick();
  welcome();
  ack(2, 2);
  say(NeedHello{});
  welcome(1);
  EXPECT_FALSE(publisher_->streaming());
  EXPECT_EQ(log_->commit_upto(), 2u);
  EXPECT_EQ(publisher_->stats().stale_welcomes, 1u);
}

TEST_F(PublisherTest, AsksForANewConnectionAtGrowingIntervalsWhenTheTrainerIsSilent) {
  tick();
  welcome();
  tick(900);
  EXPECT_FALSE(publisher_->reconnect_due(clock_.now()));
  std::vector<uint32_t> waits;
  for (int attempt = 0; attempt < 4; ++attempt) {
    uint32_t waited_ms = 0;
    while (!publisher_->reconnect_due(clock_.now())) {
      tick(50);
      waited_ms += 50;
    }
    publisher_->on_reconnected(clock_.now());
    waits.push_back(waited_ms);
  }
  EXPECT_EQ(waits, (std::vector<uint32_t>{150, 1150, 1250, 1450}));
}

TEST_F(PublisherTest, HeartbeatsWithTheHighestSealedSeq) {
  tick();
  welcome();
  seal_some(2);
  const auto heartbeats = only<Heartbeat>(tick(150));
  ASSERT_EQ(heartbeats.size(), 1u);
  EXPECT_EQ(heartbeats[0].last_seq, 2u);
}

TEST_F(PublisherTest, SaysByeAndThenNothing) {
  seal_some(1);
  tick();
  welcome();
  publisher_->bye("drained", {"open-task"});
  const auto byes = only<Bye>(tick());
  ASSERT_EQ(byes.size(), 1u);
  EXPECT_EQ(byes[0].open_task_ids, (std::vector<std::string>{"open-task"}));
  EXPECT_TRUE(tick(1000).empty());
}

}  // namespace
}  // namespace warproll
